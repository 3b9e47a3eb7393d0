//! The letters of the dead-letter topic, from the group's offsets to the ends at the start.
//!
//! `calls` asks the brokers, `offsets` reads and commits those of the group, and `context` receives
//! the callbacks of librdkafka.

mod calls;
mod context;
mod offsets;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use campanile_core::{ConfigError, Record};
use campanile_kafka::ToRecord;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use self::calls::{READ, RETRY_DELAY, is_permanent};
use self::context::{Assignment, Context};
use crate::AdminError;
use crate::kafka::{client_config, config_error, is_unreadable, observer};

/// Settings of the consumer. An eager assignment starts each partition at its committed offset
/// again, so that nothing that was read before a rebalance has to be kept.
const SETTINGS: &[(&str, &str)] = &[
    // The record of a damaged letter would be produced with a valid checksum.
    ("check.crcs", "true"),
    ("auto.offset.reset", "earliest"),
    ("enable.partition.eof", "true"),
    ("group.protocol", "classic"),
    ("partition.assignment.strategy", "range"),
    // A follower may end before the leader, and the end of a partition is committed.
    ("client.rack", ""),
];

/// After this time, the partitions of a run that was killed are free. It is the shortest time that
/// brokers allow by default, because no offset is at risk: each round of letters is committed
/// before the next.
const SESSION_TIMEOUT: (&str, &str) = ("session.timeout.ms", "6000");

/// How long to wait until the group is left, which takes the brokers milliseconds.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Source {
    consumer: Arc<StreamConsumer<Context>>,
    kafka: ClientConfig,
    topic: Arc<str>,
    topic_id: Option<Arc<str>>,
    /// The first and the last offset of each partition at the start.
    bounds: HashMap<i32, (i64, i64)>,
    partitions: BTreeMap<i32, Partition>,
    assignment: Assignment,
    /// An event that was received together with a new assignment.
    pending: Option<Event>,
    /// The time without any event.
    idle: Duration,
    /// How many letters are left to the group, and since when.
    progress: (i64, Instant),
    /// How many letters earlier runs of the group had handled at the start, at most.
    pub(super) handled_before: u64,
    timeout: Duration,
}

/// An assigned partition.
struct Partition {
    /// The offset behind the last letter that was read.
    read: i64,
    /// Whether no letter follows. Offsets may follow up to the end: those of transactions' markers, and
    /// of records that were aborted or compacted away.
    is_read: bool,
    /// The offset behind the last letter that was handled.
    handled: i64,
    /// The first letter that the next run has to read again.
    deferred: i64,
    committed: i64,
    end: i64,
}

/// The result of [`Source::next`].
pub(super) enum Next {
    Letter(Record),
    /// No letter arrived in time.
    Idle,
    /// Partitions were assigned or revoked. Letters that were read and not handled are read again,
    /// possibly by another process.
    Reassigned,
    /// All letters of the assigned partitions were read.
    End,
}

enum Event {
    Letter(Record),
    /// The next letter of a partition cannot be read.
    Unreadable(KafkaError),
    /// The end of the partition, or a letter that is newer than the run.
    End(i32),
}

impl Source {
    /// Joins the group, which assigns some of the topic's partitions.
    pub(super) async fn join(
        kafka: &ClientConfig,
        topic: &Arc<str>,
        group: &str,
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let mut source = Self::new(kafka, topic, group, timeout).await?;
        // Where an offset is not believed, the consumer must start at the first letter, too.
        source.commit(std::iter::empty()).await?;
        let subscribed = source.consumer.subscribe(&[topic]);
        subscribed.map_err(|error| source.error("cannot join the group", error))?;
        Ok(source)
    }

    /// Reads all partitions from the group's offsets, without joining the group.
    pub(super) async fn attach(
        kafka: &ClientConfig,
        topic: &Arc<str>,
        group: &str,
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let mut source = Self::new(kafka, topic, group, timeout).await?;
        let mut list = TopicPartitionList::new();
        for (&partition, state) in &source.partitions {
            let added = list.add_partition_offset(topic, partition, Offset::Offset(state.read));
            added.map_err(|error| source.error("cannot read the topic", error))?;
        }
        let assigned = source.consumer.assign(&list);
        assigned.map_err(|error| source.error("cannot read the topic", error))?;
        source.assignment.is_assigned = true;
        Ok(source)
    }

    /// Connects, and finds out where the group continues.
    async fn new(
        kafka: &ClientConfig,
        topic: &Arc<str>,
        group: &str,
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let mut config = client_config(kafka, group, SETTINGS)?;
        if config.get(SESSION_TIMEOUT.0).is_none() {
            config.set(SESSION_TIMEOUT.0, SESSION_TIMEOUT.1);
        }
        let consumer = StreamConsumer::from_config_and_context(&config, Context::default());
        let consumer = consumer.map_err(|error| config_error(&error))?;
        let mut source = Self {
            consumer: Arc::new(consumer),
            kafka: kafka.clone(),
            topic: topic.clone(),
            topic_id: None,
            bounds: HashMap::new(),
            partitions: BTreeMap::new(),
            assignment: Assignment::default(),
            pending: None,
            idle: Duration::ZERO,
            progress: (0, Instant::now()),
            handled_before: 0,
            timeout,
        };
        let Some(partitions) = source.partitions_of(topic).await? else {
            return Err(ConfigError::new(format!("there is no topic `{topic}`")).into());
        };
        source.topic_id = source.fetch_topic_id().await?;
        // Before the ends, so that no offset beyond them was committed meanwhile.
        let committed = source.observed(observer(kafka, group, READ, &[])?, partitions).await?;
        source.bounds = source.fetch_bounds(partitions).await?;
        source.resume(committed);
        Ok(source)
    }

    /// Reads the next letter. Waits for at most this time.
    ///
    /// # Cancellation
    /// No letter is lost.
    pub(super) async fn next(&mut self, wait: Duration) -> Result<Next, AdminError> {
        loop {
            let event = match self.pending.take() {
                Some(event) => Some(event),
                None if self.is_at_end() => return Ok(Next::End),
                None => self.receive(wait).await?,
            };
            let assignment = *self.context().assignment();
            if assignment.generation != self.assignment.generation {
                self.assignment = assignment;
                self.pending = event;
                self.idle = Duration::ZERO;
                self.start_assigned().await?;
                return Ok(Next::Reassigned);
            }
            match event {
                None => return Ok(Next::Idle),
                Some(Event::Unreadable(error)) => return Err(self.unreadable(error)),
                Some(Event::End(partition)) => self.end(partition),
                Some(Event::Letter(record)) => {
                    let state = self.partitions.get_mut(&record.partition());
                    if let Some(state) = state.filter(|state| record.offset() >= state.read) {
                        state.read = record.offset() + 1;
                        state.is_read = state.read >= state.end;
                        return Ok(Next::Letter(record));
                    }
                }
            }
        }
    }

    /// Receives the next event. `None` if there was none in time.
    async fn receive(&mut self, wait: Duration) -> Result<Option<Event>, AdminError> {
        let start = Instant::now();
        let received = tokio::time::timeout(wait, self.consumer.recv()).await;
        let event = match received {
            Err(_) => None,
            Ok(Ok(message)) => {
                let (partition, offset) = (message.partition(), message.offset());
                let end = self.bounds.get(&partition).map_or(0, |&(_, end)| end);
                let is_newer = offset >= end;
                Some(if is_newer {
                    Event::End(partition)
                } else {
                    Event::Letter(message.to_record())
                })
            }
            Ok(Err(KafkaError::PartitionEOF(partition))) => Some(Event::End(partition)),
            Ok(Err(error)) if is_unreadable(&error) => Some(Event::Unreadable(error)),
            Ok(Err(error)) if is_permanent(&error) => {
                return Err(self.error("cannot read the dead letters", error));
            }
            Ok(Err(error)) => {
                self.context().set_last_error(error.to_string());
                // Errors of all brokers arrive together; the next event is waited for.
                tokio::time::sleep(wait.min(RETRY_DELAY)).await;
                None
            }
        };
        if event.is_some() {
            self.idle = Duration::ZERO;
            return Ok(event);
        }
        self.idle += start.elapsed();
        if self.idle >= self.timeout {
            let waited = format!("nothing received for {:?}", self.timeout);
            return Err(self.error("cannot read the dead letters", waited));
        }
        Ok(None)
    }

    /// Starts the partitions that the group assigned, at its offsets.
    async fn start_assigned(&mut self) -> Result<(), AdminError> {
        self.partitions.clear();
        let list = self.consumer.assignment();
        let list = list.map_err(|error| self.error("cannot read the topic", error))?;
        if list.count() > 0 {
            // A partition may have been paused at its end, and has to be read again from the group's
            // offset.
            let _ = self.consumer.resume(&list);
            self.start_partitions(self.committed(list).await?);
        }
        Ok(())
    }

    /// Starts partitions at these offsets, or at their first letters.
    fn start_partitions(&mut self, positions: Vec<(i32, Option<i64>)>) {
        for (partition, committed) in positions {
            // A partition that was added since the start has no letters for this run.
            let &(first, end) = self.bounds.get(&partition).unwrap_or(&(0, 0));
            let next = committed.unwrap_or(first).max(first);
            let state = Partition {
                read: next,
                is_read: next >= end,
                handled: next,
                deferred: i64::MAX,
                committed: committed.unwrap_or(-1),
                end,
            };
            self.partitions.insert(partition, state);
        }
    }

    /// Takes part in the group for this time, or until an event arrives, which [`next`](Self::next)
    /// then handles.
    pub(super) async fn wait(&mut self, time: Duration) -> Result<(), AdminError> {
        self.idle = Duration::ZERO;
        self.pending = self.receive(time).await?;
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.assignment.is_assigned
            && self.assignment.generation == self.context().assignment().generation
            && self.partitions.values().all(|state| state.is_read)
    }

    fn end(&mut self, partition: i32) {
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.is_read = true;
            let mut list = TopicPartitionList::new();
            list.add_partition(&self.topic, partition);
            // Newer letters are ignored in any case.
            let _ = self.consumer.pause(&list);
        }
    }

    /// The number of letters that were not read yet, at most.
    pub(super) fn remaining(&self) -> u64 {
        let left = |state: &Partition| u64::try_from(state.end - state.read).unwrap_or(0);
        self.partitions.values().filter(|state| !state.is_read).map(left).sum()
    }

    /// Leaves the group. Waits for at most [`LEAVE_TIMEOUT`], because librdkafka may never close a
    /// consumer in the middle of a rebalance. The group then removes it by its session timeout.
    pub(super) async fn close(self) {
        let (done, closed) = oneshot::channel();
        let drop_consumer = move || {
            drop(self.consumer);
            let _ = done.send(());
        };
        // A thread that the runtime does not wait for.
        if thread::Builder::new().spawn(drop_consumer).is_ok() {
            let _ = timeout(LEAVE_TIMEOUT, closed).await;
        }
    }
}
