//! Questions to the brokers that join no group and change nothing.

mod assignment;
mod members;
mod topic;
mod topic_config;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Clock, ConfigError};
use campanile_kafka::ConsumerConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};

pub(crate) use self::members::Members;
pub(crate) use self::topic::{check_partition, fetch_config, partitions};
pub(crate) use self::topic_config::TopicConfig;
use crate::AdminError;

const SETTINGS: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("allow.auto.create.topics", "false"),
];

/// Defaults for reading many records of a few partitions. Those of a consumer are small, because its
/// driver has a budget.
const QUEUES: &[(&str, &str)] = &[
    ("queued.min.messages", "100000"),
    ("queued.max.messages.kbytes", "8192"),
    ("max.partition.fetch.bytes", "1048576"),
];

/// The time limit of each attempt to reach a broker.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);

/// The longest time limit of an attempt to read offsets.
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the settings of a client that reads topics: the given ones, those of the user, and where
/// neither sets one, the defaults of a consumer. Without its `check.crcs`, for example, a damaged record
/// would be taken for a sound one.
pub(crate) fn client_config(
    kafka: &ClientConfig,
    group: &str,
    settings: &[(&str, &str)],
) -> Result<ClientConfig, ConfigError> {
    let mut kafka = kafka.clone();
    kafka.remove("group.instance.id");
    let queues = QUEUES.iter().filter(|(name, _)| kafka.get(name).is_none());
    let settings: Vec<_> = queues.chain(SETTINGS).chain(settings).copied().collect();
    let config = ConsumerConfig::from(kafka).set("group.id", group);
    let set = |config: ConsumerConfig, (name, value)| config.set(name, value);
    settings.into_iter().fold(config, set).client_config()
}

/// Creates a consumer that reads the offsets of this group. It has these settings in addition, and
/// must not subscribe, so that it never joins the group. `right` is the operation on topics that the
/// user needs.
pub(crate) fn observer(
    kafka: &ClientConfig,
    group: &str,
    right: &'static str,
    settings: &[(&str, &str)],
) -> Result<BaseConsumer<Context>, ConfigError> {
    let config = client_config(kafka, group, settings)?;
    BaseConsumer::from_config_and_context(&config, Context::new(right))
        .map_err(|error| config_error(&error))
}

/// Waits until a broker answers, for at most this time. Fails early if that is hopeless.
pub(crate) fn fetch_metadata(
    consumer: &BaseConsumer<Context>,
    topic: Option<&str>,
    timeout: Duration,
) -> Result<Metadata, AdminError> {
    let clock = Clock::boot();
    let start = clock.now();
    loop {
        match consumer.fetch_metadata(topic, ATTEMPT_TIMEOUT) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => {
                // Errors of connections are reported by the callback.
                while consumer.poll(Duration::ZERO).is_some() {}
                let context = consumer.context();
                if context.is_hopeless() || clock.now() - start >= timeout {
                    return Err(context.error("cannot reach the brokers", error));
                }
            }
        }
    }
}

/// Reads the offsets that the consumer's group has committed. Repeats the request for at most this time
/// while the group's coordinator is starting or moving to another broker. The consumer has no
/// partitions, so that it receives no records.
pub(crate) fn committed_offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &TopicPartitionList,
    timeout: Duration,
) -> KafkaResult<TopicPartitionList> {
    let clock = Clock::boot();
    let start = clock.now();
    loop {
        let waited = clock.now() - start;
        let attempt = (waited / 2).clamp(ATTEMPT_TIMEOUT, MAX_ATTEMPT_TIMEOUT);
        let offsets = consumer.committed_offsets(partitions.clone(), attempt.min(timeout));
        let offsets = offsets.and_then(|offsets| {
            offsets.elements().iter().try_for_each(|element| element.error())?;
            Ok(offsets)
        });
        let Err(error) = offsets else { return offsets };
        // The coordinator is looked up in the background, and only an event says that this is refused.
        while let Some(event) = consumer.poll(Duration::ZERO) {
            if let Err(denied) = event
                && denied.rdkafka_error_code() == Some(Code::GroupAuthorizationFailed)
            {
                return Err(denied);
            }
        }
        if clock.now() - start >= timeout {
            return Err(error);
        }
        match error.rdkafka_error_code() {
            Some(Code::OperationTimedOut) => {}
            Some(
                Code::NotCoordinator
                | Code::CoordinatorNotAvailable
                | Code::CoordinatorLoadInProgress,
            ) => std::thread::sleep(ATTEMPT_TIMEOUT),
            _ => return Err(error),
        }
    }
}

/// The committed offset of each partition that has one.
pub(crate) type Offsets = HashMap<(String, i32), i64>;

/// Reads the offsets as [`committed_offsets`] does.
pub(crate) fn fetch_committed<'a, C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: impl IntoIterator<Item = (&'a str, i32)>,
    timeout: Duration,
) -> KafkaResult<Offsets> {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition(topic, partition);
    }
    let mut offsets = Offsets::new();
    if list.count() == 0 {
        return Ok(offsets);
    }
    for element in committed_offsets(consumer, &list, timeout)?.elements() {
        if let Offset::Offset(offset) = element.offset() {
            offsets.insert((element.topic().to_owned(), element.partition()), offset);
        }
    }
    Ok(offsets)
}

/// Omits the value of a setting, which may be a secret.
pub(crate) fn config_error(error: &KafkaError) -> ConfigError {
    ConfigError::new(match error {
        KafkaError::ClientConfig(_, description, name, _) => format!("`{name}`: {description}"),
        error => error.to_string(),
    })
}

/// Says what to do about an error that no retry fixes. `topic` and `group` are the operations that the
/// user needs.
pub(crate) fn advice(code: Option<Code>, topic: &str, group: &str) -> Option<String> {
    Some(match code? {
        Code::TopicAuthorizationFailed => format!("allow the user `{topic}` on the topic"),
        Code::GroupAuthorizationFailed => format!("allow the user `{group}` on the group"),
        Code::BadMessage | Code::BadCompression => {
            "the record is damaged, on the way from the brokers or on their disks: run again to find out"
                .to_owned()
        }
        Code::NotImplemented if cfg!(feature = "zstd") => {
            "the record has a format that this version does not know".to_owned()
        }
        Code::NotImplemented => {
            "the record has a format that this program was built without, such as zstd: build it with \
             the feature `zstd` of `campanile-cli` or `campanile-admin`"
                .to_owned()
        }
        _ => return None,
    })
}

/// Whether a record is damaged, or in a format that librdkafka does not know. librdkafka would continue
/// behind it.
pub(crate) fn is_unreadable(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::BadMessage | Code::BadCompression | Code::NotImplemented))
}

/// The code of librdkafka's error, if it is one.
pub(crate) fn code(error: &BoxError) -> Option<Code> {
    error.downcast_ref::<KafkaError>()?.rdkafka_error_code()
}

/// Collects errors instead of logging them.
pub(crate) struct Context {
    /// The operation on topics that the user needs. That on groups is `Describe`.
    right: &'static str,
    errors: Mutex<Vec<(Code, String)>>,
    /// As of [`fetched`](Self::fetched).
    fetched: AtomicI64,
}

impl Context {
    pub(crate) fn new(right: &'static str) -> Self {
        Self { right, errors: Mutex::default(), fetched: AtomicI64::new(0) }
    }

    /// The sum of the offsets up to which records were fetched, including those that are not delivered,
    /// because their transaction was aborted. Needs `statistics.interval.ms`.
    pub(crate) fn fetched(&self) -> i64 {
        self.fetched.load(Ordering::Relaxed)
    }

    pub(crate) fn is_hopeless(&self) -> bool {
        self.errors().iter().any(|(code, _)| {
            matches!(
                code,
                Code::AllBrokersDown
                    | Code::Authentication
                    | Code::SaslAuthenticationFailed
                    | Code::SSL
            )
        })
    }

    /// Creates an error with the last reason that the client gave, if it gave one.
    pub(crate) fn error(&self, action: &str, error: impl Into<BoxError>) -> AdminError {
        let error = error.into();
        let code = code(&error);
        let advice = |code| advice(code, self.right, "Describe");
        let errors = self.errors();
        if let Some(advice) = advice(code) {
            // The reason of the same error names the offset.
            let own = errors.iter().rfind(|(other, _)| Some(*other) == code);
            let text = own.map_or_else(|| error.to_string(), |(_, reason)| reason.clone());
            return AdminError::unavailable(action, format!("{text}; {advice}"));
        }
        // That all brokers are down follows the reason.
        let reason = errors.iter().rfind(|(code, _)| *code != Code::AllBrokersDown);
        let source = reason.map_or(error, |(code, reason)| match advice(Some(*code)) {
            Some(advice) => format!("{reason}; {advice}").into(),
            None => reason.clone().into(),
        });
        AdminError::unavailable(action, source)
    }

    fn errors(&self) -> MutexGuard<'_, Vec<(Code, String)>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.errors().push((code, reason.to_owned()));
        }
    }

    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
        self.fetched.store(partitions.map(|it| it.next_offset).sum(), Ordering::Relaxed);
    }
}

impl ConsumerContext for Context {}
