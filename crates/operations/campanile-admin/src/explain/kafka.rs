//! Reads one record, and what the brokers know of its partition and group. Joins no group and commits
//! nothing.

use std::time::Duration;

use campanile_core::{BoxError, Clock, Coordinates, Record};
use campanile_kafka::{ToRecord, topic_id};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::{Cause, GroupReport};
use crate::AdminError;
use crate::kafka::{
    ATTEMPT_TIMEOUT, Context, Members, check_partition, fetch_committed, is_unreadable, observer,
    partitions,
};

const SETTINGS: &[(&str, &str)] = &[
    ("enable.partition.eof", "true"),
    // A record that is deleted meanwhile is an error, and not the next one.
    ("auto.offset.reset", "error"),
    ("fetch.wait.max.ms", "10"),
    // One record is read.
    ("queued.min.messages", "1"),
    // Another event in the queue counts as a record. By default, the fetch then waits for a second.
    ("fetch.queue.backoff.ms", "10"),
    ("queued.max.messages.kbytes", "1024"),
];

/// The group of a consumer that asks for no group's offsets. librdkafka assigns nothing without one.
const NO_GROUP: &str = "campanile-explain";

/// The operation on the topic that the user needs.
const RIGHT: &str = "Read";

const ISOLATION: &str = "isolation.level";

/// What the brokers know of a record.
pub(super) struct Observed {
    /// The record, or why it cannot be read.
    pub(super) record: Result<Record, Cause>,
    /// The first offset of the partition, and that behind its last record.
    pub(super) bounds: (i64, i64),
    pub(super) group: Option<GroupReport>,
}

/// Reads a record. Blocks the thread.
pub(super) fn observe(
    kafka: &ClientConfig,
    at: &Coordinates,
    group: Option<&str>,
    timeout: Duration,
) -> Result<Observed, AdminError> {
    // The brokers do not show a consumer that waits for transactions the group's offsets while one of
    // them is part of an open transaction, nor the last records of the partition.
    let mut config = kafka.clone();
    config.set(ISOLATION, "read_uncommitted");
    let uncommitted = Reader::connect(&config, at, group.unwrap_or(NO_GROUP), timeout)?;
    let (start, end) = uncommitted.bounds()?;
    let mut observed =
        Observed { record: Err(Cause::BeforeStart), bounds: (start, end), group: None };
    if let Some(group) = group {
        observed.group = Some(uncommitted.group(group)?);
    }
    if at.offset < start {
        return Ok(observed);
    }
    if at.offset >= end {
        observed.record = Err(Cause::BeyondEnd);
        return Ok(observed);
    }
    let reader = Reader::connect(kafka, at, group.unwrap_or(NO_GROUP), timeout)?;
    let (_, stable_end) = reader.bounds()?;
    if at.offset >= stable_end {
        observed.record = Err(Cause::OpenTransaction);
        return Ok(observed);
    }
    if let Some(record) = reader.read_at(at.offset)? {
        observed.record = Ok(record);
        if let Some(group) = &mut observed.group {
            group.is_next = reader.is_next(group.committed, start)?;
        }
        return Ok(observed);
    }
    observed.record = Err(if uncommitted.read_at(at.offset)?.is_some() {
        Cause::Aborted
    } else if uncommitted.bounds()?.0 > at.offset {
        // Deleted meanwhile.
        Cause::BeforeStart
    } else {
        Cause::NoRecord
    });
    Ok(observed)
}

struct Reader<'a> {
    consumer: BaseConsumer<Context>,
    at: &'a Coordinates,
    timeout: Duration,
    clock: Clock,
}

impl<'a> Reader<'a> {
    /// Connects, and looks the partition up.
    fn connect(
        kafka: &ClientConfig,
        at: &'a Coordinates,
        group: &str,
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let consumer = observer(kafka, group, RIGHT, SETTINGS)?;
        let reader = Self { consumer, at, timeout, clock: Clock::boot() };
        reader.look_up()?;
        Ok(reader)
    }

    fn look_up(&self) -> Result<(), AdminError> {
        let Coordinates { topic, partition, .. } = self.at;
        let found = partitions(&self.consumer, topic, self.timeout)?;
        Ok(check_partition(topic, &found, *partition)?)
    }

    /// Reads the first offset, and that behind the last record that this consumer can read.
    fn bounds(&self) -> Result<(i64, i64), AdminError> {
        let (topic, partition) = (&self.at.topic, self.at.partition);
        let bounds = self.consumer.fetch_watermarks(topic, partition, self.timeout);
        bounds.map_err(|error| self.error("cannot read the ends of the partition", error))
    }

    /// Whether this offset is committed, and no record lies between it and the record that is asked
    /// for. There may be offsets between them: of deleted records, and of the markers of transactions.
    fn is_next(&self, committed: Option<i64>, start: i64) -> Result<bool, AdminError> {
        let Some(next) = committed.map(|committed| committed.max(start)) else {
            return Ok(false);
        };
        if next >= self.at.offset {
            return Ok(next == self.at.offset);
        }
        Ok(self.read(next)?.is_some_and(|record| record.offset() == self.at.offset))
    }

    /// Reads the record at this offset, unless this consumer skips it.
    fn read_at(&self, offset: i64) -> Result<Option<Record>, AdminError> {
        Ok(self.read(offset)?.filter(|record| record.offset() == offset))
    }

    /// Reads the first record at this offset or behind it. `None` if this consumer can read none.
    fn read(&self, offset: i64) -> Result<Option<Record>, AdminError> {
        let action = "cannot read the record";
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.at.topic, self.at.partition, Offset::Offset(offset))
            .and_then(|()| self.consumer.assign(&list))
            .map_err(|error| self.error(action, error))?;
        let id = topic_id(self.consumer.client(), &self.at.topic, self.timeout)
            .map_err(|error| self.error(action, error))?;
        let start = self.clock.now();
        while self.clock.now() - start < self.timeout {
            match self.consumer.poll(ATTEMPT_TIMEOUT) {
                None => {}
                Some(Ok(message)) => return Ok(Some(message.to_record_of(id.as_ref()))),
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(None),
                Some(Err(error)) => match error.rdkafka_error_code() {
                    // Deleted since the bounds were read.
                    Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => return Ok(None),
                    // Reading needs no coordinator.
                    Some(Code::GroupAuthorizationFailed) => {}
                    Some(Code::TopicAuthorizationFailed | Code::UnknownTopicOrPartition) => {
                        return Err(self.error(action, error));
                    }
                    _ if is_unreadable(&error) || self.is_hopeless() => {
                        return Err(self.error(action, error));
                    }
                    _ => {}
                },
            }
        }
        Err(self.error(action, format!("nothing received for {:?}", self.timeout)))
    }

    fn group(&self, name: &str) -> Result<GroupReport, AdminError> {
        let partition = [(&*self.at.topic, self.at.partition)];
        let committed =
            fetch_committed(&self.consumer, partition, self.timeout).map_err(|error| {
                self.error(&format!("cannot read the offsets of the group `{name}`"), error)
            })?;
        let Members { state, count, owners } = Members::fetch(&self.consumer, name, self.timeout);
        let partition = (self.at.topic.to_string(), self.at.partition);
        Ok(GroupReport {
            name: name.into(),
            committed: committed.into_values().next(),
            is_next: false,
            is_empty: state.as_deref() == Some("Empty"),
            members: count,
            member: owners.get(&partition).map(|member| member.as_str().into()),
        })
    }

    fn is_hopeless(&self) -> bool {
        self.consumer.context().is_hopeless()
    }

    fn error(&self, action: &str, error: impl Into<BoxError>) -> AdminError {
        self.consumer.context().error(action, error)
    }
}
