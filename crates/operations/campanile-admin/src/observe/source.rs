//! Reads the records of a topic, one partition after another. Joins no group and commits nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Clock, ConfigError, Record, millis};
use campanile_kafka::{ToRecord, topic_id};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::{Observe, ObservedPartition, Position};
use crate::AdminError;
use crate::kafka::{
    ATTEMPT_TIMEOUT, Context, Offsets, check_partition, fetch_committed, is_unreadable, observer,
    partitions,
};

const SETTINGS: &[(&str, &str)] = &[
    ("enable.partition.eof", "true"),
    // The first records may be deleted meanwhile.
    ("auto.offset.reset", "earliest"),
    // By default, the fetch waits for a second once the queue is full.
    ("fetch.queue.backoff.ms", "10"),
    // Shows the progress behind records that are not delivered.
    ("statistics.interval.ms", "250"),
];

/// The operation on the topic that the user needs.
const RIGHT: &str = "Read";

/// The largest number of records of a batch.
const MAX_BATCH: usize = 500;
/// A batch ends with the record that exceeds this.
const MAX_BATCH_BYTES: usize = 4 << 20;

pub(super) struct Source {
    consumer: BaseConsumer<Context>,
    topic: Arc<str>,
    topic_id: Option<Arc<str>>,
    timeout: Duration,
    clock: Clock,
    partitions: Vec<ObservedPartition>,
    /// The index of the partition that is read.
    current: usize,
    is_assigned: bool,
}

/// Records of a partition, in order.
pub(super) struct Fetched {
    pub(super) records: Vec<Record>,
    pub(super) partition: ObservedPartition,
}

impl Source {
    /// Connects, and looks up the partitions and the group's offsets. Blocks the thread.
    pub(super) fn open(kafka: &ClientConfig, settings: &Observe) -> Result<Self, AdminError> {
        let Observe { topic, group, timeout, .. } = settings;
        // The brokers do not show a consumer that waits for transactions the group's offsets while one of
        // them is part of an open transaction.
        let mut config = kafka.clone();
        config.set("isolation.level", "read_uncommitted");
        let uncommitted = observer(&config, group, RIGHT, &[])?;
        let mut numbers = partitions(&uncommitted, topic, *timeout)?;
        if let Some(partition) = settings.partition {
            check_partition(topic, &numbers, partition)?;
            numbers = vec![partition];
        }
        numbers.sort_unstable();
        let mut source = Self {
            consumer: observer(kafka, group, RIGHT, SETTINGS)?,
            topic: topic.clone(),
            topic_id: None,
            timeout: *timeout,
            clock: Clock::boot(),
            partitions: Vec::new(),
            current: 0,
            is_assigned: false,
        };
        source.topic_id = topic_id(source.consumer.client(), topic, *timeout)
            .map_err(|error| source.error("cannot read the id of the topic", error))?;
        // Before the ends are read, so that an offset beyond them was not committed meanwhile.
        let committed = source.committed(&uncommitted, group, &numbers)?;
        for partition in numbers {
            let committed = committed.get(&(topic.to_string(), partition)).copied();
            let (_, end) = uncommitted
                .fetch_watermarks(topic, partition, *timeout)
                .map_err(|error| error_of(&uncommitted, READ_ENDS, error))?;
            let from = source.resolve(settings.from, partition)?;
            let to = source.resolve(settings.to, partition)?;
            let is_beyond_end = committed.is_some_and(|committed| committed > end);
            let observed = ObservedPartition { partition, from, to, committed, is_beyond_end };
            source.partitions.push(observed);
        }
        Ok(source)
    }

    pub(super) fn partitions(&self) -> &[ObservedPartition] {
        &self.partitions
    }

    fn committed(
        &self,
        consumer: &BaseConsumer<Context>,
        group: &str,
        partitions: &[i32],
    ) -> Result<Offsets, AdminError> {
        let topic = &*self.topic;
        let partitions = partitions.iter().map(|partition| (topic, *partition));
        let committed = fetch_committed(consumer, partitions, self.timeout).map_err(|error| {
            let action = format!("cannot read the offsets of the group `{group}`");
            error_of(consumer, &action, error)
        })?;
        if committed.is_empty() {
            return Err(ConfigError::new(format!(
                "the group `{group}` has committed no offset in the topic `{topic}`: check both names, \
                 and that the consumer commits its offsets to Kafka"
            ))
            .into());
        }
        Ok(committed)
    }

    /// Finds the offset of a position, within those of the records that this consumer can read.
    fn resolve(&self, position: Position, partition: i32) -> Result<i64, AdminError> {
        let bounds = self.consumer.fetch_watermarks(&self.topic, partition, self.timeout);
        let (start, end) = bounds.map_err(|error| self.error(READ_ENDS, error))?;
        let offset = match position {
            Position::Start => start,
            Position::End => end,
            Position::Offset(offset) => offset,
            Position::Time(time) => self.offset_at(time, partition)?.unwrap_or(end),
        };
        Ok(offset.clamp(start, end.max(start)))
    }

    /// Looks up the first record with this timestamp or a later one.
    fn offset_at(&self, time: SystemTime, partition: i32) -> Result<Option<i64>, AdminError> {
        let action = "cannot look up the time in the topic";
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(millis::of(time).max(0)))
            .map_err(|error| self.error(action, error))?;
        let found = self.consumer.offsets_for_times(list, self.timeout);
        let found = found.map_err(|error| self.error(action, error))?;
        let element = found.elements().into_iter().next();
        match element.map(|element| (element.offset(), element.error())) {
            Some((_, Err(error))) => Err(self.error(action, error)),
            Some((Offset::Offset(offset), _)) => Ok(Some(offset)),
            _ => Ok(None),
        }
    }

    /// Reads the next records. `None` at the end. Blocks the thread.
    pub(super) fn read(&mut self) -> Result<Option<Fetched>, AdminError> {
        while let Some(&partition) = self.partitions.get(self.current) {
            let (records, is_end) = self.read_partition(partition)?;
            if is_end {
                self.current += 1;
                self.is_assigned = false;
            }
            if !records.is_empty() {
                return Ok(Some(Fetched { records, partition }));
            }
        }
        Ok(None)
    }

    /// Reads the next records of a partition. Returns them, and whether none follows.
    fn read_partition(
        &mut self,
        observed: ObservedPartition,
    ) -> Result<(Vec<Record>, bool), AdminError> {
        let ObservedPartition { partition, from, to, .. } = observed;
        let mut records = Vec::new();
        if from >= to {
            return Ok((records, true));
        }
        if !self.is_assigned {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&self.topic, partition, Offset::Offset(from))
                .and_then(|()| self.consumer.assign(&list))
                .map_err(|error| self.error(READ, error))?;
            self.is_assigned = true;
        }
        let (mut received_at, mut fetched, mut bytes) = (self.clock.now(), 0, 0);
        while records.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
            let wait = if records.is_empty() { ATTEMPT_TIMEOUT } else { Duration::ZERO };
            match self.consumer.poll(wait) {
                None if !records.is_empty() => break,
                None if self.consumer.context().fetched() != fetched => {
                    fetched = self.consumer.context().fetched();
                    received_at = self.clock.now();
                }
                None => {}
                Some(Ok(message)) if message.partition() != partition => {}
                Some(Ok(message)) if message.offset() >= to => return Ok((records, true)),
                Some(Ok(message)) => {
                    let record = message.to_record_of(self.topic_id.as_ref());
                    let is_last = record.offset() + 1 >= to;
                    bytes += record.size();
                    records.push(record);
                    if is_last {
                        return Ok((records, true));
                    }
                }
                Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => {
                    return Ok((records, true));
                }
                Some(Err(error)) => self.check(error)?,
            }
            // Only progress counts: librdkafka may report errors again and again.
            if records.is_empty() && self.clock.now() - received_at >= self.timeout {
                let waited = format!("nothing received for {:?}", self.timeout);
                return Err(self.error(READ, waited));
            }
        }
        Ok((records, false))
    }

    /// Passes errors on that a retry does not fix.
    fn check(&self, error: KafkaError) -> Result<(), AdminError> {
        let is_permanent = matches!(
            error.rdkafka_error_code(),
            Some(Code::TopicAuthorizationFailed | Code::UnknownTopicOrPartition)
        );
        if is_permanent || is_unreadable(&error) || self.consumer.context().is_hopeless() {
            return Err(self.error(READ, error));
        }
        Ok(())
    }

    fn error(&self, action: &str, error: impl Into<BoxError>) -> AdminError {
        error_of(&self.consumer, action, error)
    }
}

const READ: &str = "cannot read the records";
const READ_ENDS: &str = "cannot read the ends of the partition";

fn error_of(
    consumer: &BaseConsumer<Context>,
    action: &str,
    error: impl Into<BoxError>,
) -> AdminError {
    consumer.context().error(action, error)
}
