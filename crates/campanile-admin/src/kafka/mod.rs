//! Questions to the brokers that join no group and change nothing.

mod assignment;
mod members;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Clock, ConfigError};
use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;

pub(crate) use self::members::{Members, Partition};
use crate::AdminError;

const OBSERVER_SETTINGS: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("allow.auto.create.topics", "false"),
];

/// The time limit of each attempt to reach a broker.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);

/// Creates a consumer that reads the offsets of this group. It has these settings in addition, and
/// must not subscribe, so that it never joins the group.
pub(crate) fn observer(
    kafka: &ClientConfig,
    group: &str,
    settings: &[(&str, &str)],
) -> Result<BaseConsumer<Context>, ConfigError> {
    let mut config = kafka.clone();
    config.remove("group.instance.id").set("group.id", group);
    for (name, value) in OBSERVER_SETTINGS.iter().chain(settings) {
        config.set(*name, *value);
    }
    BaseConsumer::from_config_and_context(&config, Context::default())
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
/// while the group's coordinator is starting or moving to another broker.
pub(crate) fn committed_offsets(
    consumer: &BaseConsumer<Context>,
    partitions: &TopicPartitionList,
    timeout: Duration,
) -> KafkaResult<TopicPartitionList> {
    let clock = Clock::boot();
    let start = clock.now();
    loop {
        let offsets = consumer.committed_offsets(partitions.clone(), timeout);
        let offsets = offsets.and_then(|offsets| {
            offsets.elements().iter().try_for_each(|element| element.error())?;
            Ok(offsets)
        });
        let is_moving = |error: &KafkaError| {
            matches!(
                error.rdkafka_error_code(),
                Some(
                    Code::NotCoordinator
                        | Code::CoordinatorNotAvailable
                        | Code::CoordinatorLoadInProgress
                )
            )
        };
        match offsets {
            Err(error) if is_moving(&error) && clock.now() - start < timeout => {
                std::thread::sleep(ATTEMPT_TIMEOUT);
            }
            offsets => return offsets,
        }
    }
}

/// Omits the value of a setting, which may be a secret.
pub(crate) fn config_error(error: &KafkaError) -> ConfigError {
    ConfigError::new(match error {
        KafkaError::ClientConfig(_, description, name, _) => format!("`{name}`: {description}"),
        error => error.to_string(),
    })
}

/// Collects errors instead of logging them.
#[derive(Default)]
pub(crate) struct Context {
    errors: Mutex<Vec<(Code, String)>>,
}

impl Context {
    /// Forgets the errors so far, which have been dealt with.
    pub(crate) fn clear(&self) {
        self.errors().clear();
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
        let errors = self.errors();
        // That all brokers are down follows the reason.
        let reason = errors.iter().rfind(|(code, _)| *code != Code::AllBrokersDown);
        let source = reason.map_or_else(|| error.into(), |(_, reason)| reason.clone().into());
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
}

impl ConsumerContext for Context {}
