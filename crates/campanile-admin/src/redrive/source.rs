//! The letters of the dead-letter topic, from the group's offsets to the ends at the start.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use campanile_core::{BoxError, ConfigError, Record};
use campanile_kafka::ToRecord;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, StreamConsumer,
};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::AdminError;
use crate::kafka::config_error;

/// Settings of the consumer. An eager assignment starts each partition at its committed offset
/// again, so that nothing that was read before a rebalance has to be kept.
const SETTINGS: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("enable.partition.eof", "true"),
    ("allow.auto.create.topics", "false"),
    ("group.protocol", "classic"),
    ("partition.assignment.strategy", "range"),
];

/// After this time, the partitions of a run that was killed are free. It is the shortest time that
/// brokers allow by default, because no offset is at risk: each round of letters is committed
/// before the next.
const SESSION_TIMEOUT: (&str, &str) = ("session.timeout.ms", "6000");

/// The time between two attempts of a call.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// How long to wait until the group is left, which takes the brokers milliseconds.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Source {
    consumer: Arc<StreamConsumer<Context>>,
    /// The addresses of brokers, for errors.
    brokers: String,
    topic: Arc<str>,
    /// The first and the last offset of each partition at the start.
    bounds: HashMap<i32, (i64, i64)>,
    partitions: BTreeMap<i32, Partition>,
    assignment: Assignment,
    /// An event that was received together with a new assignment.
    pending: Option<Event>,
    /// The time without any event.
    idle: Duration,
    timeout: Duration,
}

/// An assigned partition.
struct Partition {
    /// The offset behind the last letter that was read.
    read: i64,
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
        let source = Self::new(kafka, topic, group, timeout).await?;
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
        for &partition in source.bounds.keys() {
            list.add_partition(topic, partition);
        }
        source.start_partitions(list).await?;
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

    async fn new(
        kafka: &ClientConfig,
        topic: &Arc<str>,
        group: &str,
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let mut config = kafka.clone();
        config.set("group.id", group);
        for &(name, value) in SETTINGS {
            config.set(name, value);
        }
        if config.get(SESSION_TIMEOUT.0).is_none() {
            config.set(SESSION_TIMEOUT.0, SESSION_TIMEOUT.1);
        }
        let consumer = StreamConsumer::from_config_and_context(&config, Context::default());
        let consumer = consumer.map_err(|error| config_error(&error))?;
        let mut source = Self {
            consumer: Arc::new(consumer),
            brokers: kafka.get("bootstrap.servers").unwrap_or_default().to_owned(),
            topic: topic.clone(),
            bounds: HashMap::new(),
            partitions: BTreeMap::new(),
            assignment: Assignment::default(),
            pending: None,
            idle: Duration::ZERO,
            timeout,
        };
        source.bounds = source.fetch_bounds().await?;
        Ok(source)
    }

    async fn fetch_bounds(&self) -> Result<HashMap<i32, (i64, i64)>, AdminError> {
        let Some(partitions) = self.partitions_of(&self.topic).await? else {
            let topic = &self.topic;
            return Err(ConfigError::new(format!("there is no topic `{topic}`")).into());
        };
        let (topic, timeout) = (self.topic.clone(), self.timeout);
        self.call("cannot read the ends of the topic", move |consumer| {
            let bounds =
                |partition| Ok((partition, consumer.fetch_watermarks(&topic, partition, timeout)?));
            (0..partitions).map(bounds).collect()
        })
        .await
    }

    /// Counts the partitions of a topic. `None` if the topic does not exist.
    pub(super) async fn partitions_of(&self, topic: &str) -> Result<Option<i32>, AdminError> {
        let (name, timeout) = (topic.to_owned(), self.timeout);
        self.call(&format!("cannot look up `{topic}`"), move |consumer| {
            let metadata = consumer.fetch_metadata(Some(&name), timeout)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name);
            let error = topic.and_then(|topic| topic.error()).map(Code::from);
            match (error, topic.map_or(0, |topic| topic.partitions().len())) {
                (Some(Code::UnknownTopicOrPartition | Code::UnknownTopic), _) | (None, 0) => {
                    Ok(None)
                }
                (Some(error), _) => Err(KafkaError::MetadataFetch(error)),
                (None, partitions) => Ok(Some(i32::try_from(partitions).unwrap_or(i32::MAX))),
            }
        })
        .await
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
                let list = self.consumer.assignment();
                let list = list.map_err(|error| self.error("cannot read the topic", error))?;
                self.start_partitions(list).await?;
                return Ok(Next::Reassigned);
            }
            match event {
                None => return Ok(Next::Idle),
                Some(Event::End(partition)) => self.end(partition),
                Some(Event::Letter(record)) => {
                    let state = self.partitions.get_mut(&record.partition());
                    if let Some(state) = state.filter(|state| record.offset() >= state.read) {
                        state.read = record.offset() + 1;
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

    /// Starts these partitions at the group's offsets.
    async fn start_partitions(&mut self, list: TopicPartitionList) -> Result<(), AdminError> {
        self.partitions.clear();
        if list.count() == 0 {
            return Ok(());
        }
        // A partition may have been paused at its end, and has to be read again from the group's offset.
        let _ = self.consumer.resume(&list);
        for (partition, next) in self.committed(list).await? {
            // A partition that was added since the start has no letters for this run.
            let &(_, end) = self.bounds.get(&partition).unwrap_or(&(0, 0));
            let state =
                Partition { read: next, handled: next, deferred: i64::MAX, committed: next, end };
            self.partitions.insert(partition, state);
        }
        Ok(())
    }

    /// Fetches the offsets at which the group continues to read these partitions.
    async fn committed(&self, list: TopicPartitionList) -> Result<Vec<(i32, i64)>, AdminError> {
        let timeout = self.timeout;
        let committed = self.call("cannot read the group's offsets", move |consumer| {
            consumer.committed_offsets(list.clone(), timeout)
        });
        let next = |partition, offset| {
            let &(first, _) = self.bounds.get(&partition).unwrap_or(&(0, 0));
            match offset {
                Offset::Offset(offset) => offset.max(first),
                _ => first,
            }
        };
        let committed = committed.await?;
        let elements = committed.elements();
        Ok(elements.iter().map(|it| (it.partition(), next(it.partition(), it.offset()))).collect())
    }

    /// Checks whether the group has handled all letters of the partitions that are not assigned to this
    /// process. If not, another process is handling them, or it was killed, and the partitions are
    /// assigned to this one once the group has removed it.
    pub(super) async fn others_are_done(&self) -> Result<bool, AdminError> {
        let mut list = TopicPartitionList::new();
        for partition in self.bounds.keys().filter(|it| !self.partitions.contains_key(it)) {
            list.add_partition(&self.topic, *partition);
        }
        if list.count() == 0 {
            return Ok(true);
        }
        let is_done = |&(partition, next): &(i32, i64)| next >= self.bounds[&partition].1;
        Ok(self.committed(list).await?.iter().all(is_done))
    }

    /// Takes part in the group for this time, or until an event arrives, which [`next`](Self::next)
    /// then handles.
    pub(super) async fn wait(&mut self, time: Duration) -> Result<(), AdminError> {
        self.idle = Duration::ZERO;
        self.pending = self.receive(time).await?;
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        let at_end = |state: &Partition| state.read >= state.end;
        self.assignment.is_assigned
            && self.assignment.generation == self.context().assignment().generation
            && self.partitions.values().all(at_end)
    }

    fn end(&mut self, partition: i32) {
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.read = state.read.max(state.end);
            let mut list = TopicPartitionList::new();
            list.add_partition(&self.topic, partition);
            // Newer letters are ignored in any case.
            let _ = self.consumer.pause(&list);
        }
    }

    /// The number of letters that were not read yet, at most.
    pub(super) fn remaining(&self) -> u64 {
        let left = |state: &Partition| u64::try_from(state.end - state.read).unwrap_or(0);
        self.partitions.values().map(left).sum()
    }

    /// Notes that this letter, and all before it in its partition, need not be read again, except
    /// for those that were deferred.
    pub(super) fn set_handled(&mut self, letter: &Record) {
        if let Some(state) = self.partitions.get_mut(&letter.partition()) {
            state.handled = state.handled.max(letter.offset() + 1);
        }
    }

    /// Notes that the next run has to read this letter again.
    pub(super) fn set_deferred(&mut self, letter: &Record) {
        if let Some(state) = self.partitions.get_mut(&letter.partition()) {
            state.deferred = state.deferred.min(letter.offset());
        }
    }

    /// Commits the offsets of the letters that were handled, but none of these pending letters.
    pub(super) async fn commit(
        &mut self,
        pending: impl Iterator<Item = &Record>,
    ) -> Result<(), AdminError> {
        let mut first_pending = HashMap::new();
        for letter in pending {
            let first = first_pending.entry(letter.partition()).or_insert(i64::MAX);
            *first = letter.offset().min(*first);
        }
        let mut list = TopicPartitionList::new();
        let mut offsets = Vec::new();
        for (&partition, state) in &self.partitions {
            let pending = first_pending.get(&partition).copied().unwrap_or(i64::MAX);
            let offset = state.handled.min(state.deferred).min(pending);
            if offset > state.committed {
                let added =
                    list.add_partition_offset(&self.topic, partition, Offset::Offset(offset));
                added.map_err(|error| self.error("cannot commit offsets", error))?;
                offsets.push((partition, offset));
            }
        }
        if offsets.is_empty() {
            return Ok(());
        }
        let commit = self.call("cannot commit offsets", move |consumer| {
            match consumer.commit(&list, CommitMode::Sync) {
                // The new owner of the partitions handles these letters once more.
                Err(error) if is_reassigned(&error) => Ok(()),
                result => result,
            }
        });
        commit.await?;
        for (partition, offset) in offsets {
            if let Some(state) = self.partitions.get_mut(&partition) {
                state.committed = offset;
            }
        }
        Ok(())
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

    /// Makes a call that blocks, and repeats it until it succeeds or the timeout is over. A broker
    /// that has just started, or a coordinator that has just moved, refuses some requests.
    async fn call<T: Send + 'static>(
        &self,
        action: &str,
        call: impl Fn(&StreamConsumer<Context>) -> KafkaResult<T> + Send + Sync + 'static,
    ) -> Result<T, AdminError> {
        let (start, call) = (Instant::now(), Arc::new(call));
        loop {
            let (consumer, call) = (self.consumer.clone(), call.clone());
            let result = tokio::task::spawn_blocking(move || call(&consumer)).await;
            match result.unwrap_or(Err(KafkaError::Canceled)) {
                Ok(result) => return Ok(result),
                Err(error) if is_permanent(&error) || start.elapsed() >= self.timeout => {
                    return Err(self.error(action, error));
                }
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    fn context(&self) -> &Context {
        self.consumer.client().context()
    }

    /// Creates an error that also says what happened last to the connections.
    fn error(&self, action: &str, error: impl Into<BoxError>) -> AdminError {
        let error = error.into();
        let source = match self.context().last_error() {
            Some(last) if !error.to_string().contains(&last) => format!("{error}: {last}").into(),
            _ => error,
        };
        AdminError::unavailable(format!("{action} on Kafka at {}", self.brokers), source)
    }
}

/// Whether a retry cannot succeed without a change by an operator.
fn is_permanent(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(error, KafkaError::MessageConsumptionFatal(_))
        || matches!(code, Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed))
}

/// Whether the partitions were assigned to another process.
fn is_reassigned(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::RebalanceInProgress | Code::IllegalGeneration | Code::UnknownMemberId)
    )
}

/// The callbacks of the consumer.
#[derive(Default)]
struct Context {
    assignment: Mutex<Assignment>,
    last_error: Mutex<Option<String>>,
}

/// The state of the group's assignment.
#[derive(Clone, Copy, Default)]
struct Assignment {
    /// The number of changes.
    generation: u64,
    is_assigned: bool,
}

impl Context {
    fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_last_error(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        self.set_last_error(if reason.is_empty() { error.to_string() } else { reason.to_owned() });
    }
}

impl ConsumerContext for Context {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut assignment = self.assignment();
        assignment.generation += 1;
        assignment.is_assigned = matches!(rebalance, Rebalance::Assign(_));
    }
}
