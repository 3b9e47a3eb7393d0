//! What is examined.

use std::time::Duration;

use campanile_core::{ConfigError, HumanDuration};
use campanile_idempotency::IdempotencyConfig;
use campanile_kafka::ConsumerConfig;
use campanile_postgres::PgConfig;
use campanile_redis::RedisConfig;
use serde::Deserialize;
use toml::{Table, Value};

use super::FindingKind;
use crate::StoreConfig;

/// The settings of a deployment: of its consumer, its layer and its store.
///
/// ```
/// use campanile_admin::doctor::Deployment;
/// use campanile_idempotency::IdempotencyConfig;
/// use campanile_kafka::ConsumerConfig;
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let deployment = Deployment::new(
///     ConsumerConfig::new("localhost:9092", "billing"),
///     IdempotencyConfig::new("billing.payments"),
///     "redis://localhost:6379".parse()?,
/// )
/// .subscribe(["payments"])
/// .with_dead_letter_topic("payments.dead");
/// # let _ = deployment;
/// # Ok(())
/// # }
/// ```
///
/// # Configuration files
///
/// The settings parse from [TOML](Self::from_toml). `topics`, `kafka` with librdkafka's settings,
/// `layer` with the fields of [`IdempotencyConfig`], and one of `redis` and `postgres` with the
/// fields of [`RedisConfig`] or [`PgConfig`] are required. Durations are strings such as `"30s"`. An
/// unknown field is an error. In every string, `${NAME}` stands for the environment variable `NAME`,
/// so that the file needs no passwords.
///
/// ```
/// use campanile_admin::doctor::Deployment;
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let deployment = Deployment::from_toml(
///     r#"
///     topics = ["payments"]
///     dead_letter_topics = ["payments.dead"]
///     retry_topics = [{ topic = "billing.retry.5m", delay = "5m" }]
///     drain_timeout = "10s"
///     grace_period = "45s"
///     handler_timeout = "10s"
///     has_inbox = false
///
///     [kafka]
///     "bootstrap.servers" = "localhost:9092"
///     "group.id" = "billing"
///
///     [layer]
///     namespace = "billing.payments"
///     lock_ttl = "30s"
///
///     [redis]
///     url = "redis://localhost:6379" # or "redis://app:${REDIS_PASSWORD}@localhost:6379"
///     "#,
/// )?;
/// # let _ = deployment;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Deployment {
    pub(super) consumer: ConsumerConfig,
    pub(super) layer: IdempotencyConfig,
    pub(super) store: StoreConfig,
    pub(super) topics: Vec<String>,
    pub(super) dead_letter_topics: Vec<String>,
    pub(super) retry_topics: Vec<(String, Duration)>,
    pub(super) drain_timeout: Duration,
    pub(super) grace_period: Option<Duration>,
    pub(super) handler_timeout: Option<Duration>,
    pub(super) has_inbox: bool,
    pub(super) observation: Option<Duration>,
    pub(super) accepted: Vec<FindingKind>,
}

impl Deployment {
    /// Creates a deployment of this consumer, this layer and this store. OAuth tokens that a function
    /// of the consumer obtains are not used.
    pub fn new(
        consumer: impl Into<ConsumerConfig>,
        layer: impl Into<IdempotencyConfig>,
        store: StoreConfig,
    ) -> Self {
        Self {
            consumer: consumer.into(),
            layer: layer.into(),
            store,
            topics: Vec::new(),
            dead_letter_topics: Vec::new(),
            retry_topics: Vec::new(),
            drain_timeout: Duration::from_secs(10),
            grace_period: None,
            handler_timeout: None,
            has_inbox: false,
            observation: None,
            accepted: Vec::new(),
        }
    }

    /// Parses a configuration file; see [above](Self#configuration-files).
    ///
    /// # Errors
    /// Fails if the text is not TOML, if a field is unknown, missing or invalid, or if an environment
    /// variable is not set. The error shows neither passwords nor the values of variables.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::parse(text, |name| std::env::var(name).ok())
    }

    fn parse(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut file: Table = text.parse().map_err(|error: toml::de::Error| {
            // The whole text of the error quotes the line, which may contain a password.
            let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            ConfigError::new(format!("{line}{}", error.message()))
        })?;
        for (_, value) in &mut file {
            replace_variables(value, &variable)?;
        }
        let file: File = file
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError::new(error.message().to_owned()))?;
        let store = match (file.redis, file.postgres) {
            (Some(redis), None) => StoreConfig::Redis(redis),
            (None, Some(postgres)) => StoreConfig::Postgres(postgres),
            _ => {
                return Err(ConfigError::new(
                    "exactly one of the tables `redis` and `postgres` is required",
                ));
            }
        };
        let settings: Result<Vec<_>, _> = file.kafka.into_iter().map(kafka_setting).collect();
        let consumer: ConsumerConfig = settings?.into_iter().collect();
        let mut deployment = Self::new(consumer, file.layer, store).subscribe(file.topics);
        deployment.dead_letter_topics = file.dead_letter_topics;
        for RetryTopic { topic, delay } in file.retry_topics {
            deployment = deployment.with_retry_topic(topic, delay.0);
        }
        if let Some(HumanDuration(timeout)) = file.drain_timeout {
            deployment = deployment.with_drain_timeout(timeout);
        }
        deployment.grace_period = file.grace_period.map(|period| period.0);
        deployment.handler_timeout = file.handler_timeout.map(|timeout| timeout.0);
        deployment.has_inbox = file.has_inbox;
        Ok(deployment)
    }

    /// Adds topics that the consumer subscribes to. Regular expressions are not checked.
    pub fn subscribe<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Adds a dead-letter topic.
    pub fn with_dead_letter_topic(mut self, topic: impl Into<String>) -> Self {
        self.dead_letter_topics.push(topic.into());
        self
    }

    /// Adds a retry topic, with its delay.
    pub fn with_retry_topic(mut self, topic: impl Into<String>, delay: Duration) -> Self {
        self.retry_topics.push((topic.into(), delay));
        self
    }

    /// Sets the consumer's drain timeout. Default: 10 s, the consumer's default.
    pub fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the time after which a process that shuts down is killed, such as Kubernetes'
    /// `terminationGracePeriodSeconds`. Default: unknown, and not compared with anything.
    pub fn with_grace_period(mut self, period: Duration) -> Self {
        self.grace_period = Some(period);
        self
    }

    /// Sets the longest time that a handler may take, usually the timeout inside the layer. Default:
    /// unknown, and not compared with anything.
    pub fn with_handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Sets that handlers run in transactions of the inbox, so that Postgres' timeouts apply to them.
    /// Default: they do not.
    pub fn with_inbox(mut self) -> Self {
        self.has_inbox = true;
        self
    }

    /// Sets for how long partitions with unprocessed records are observed, to find those without
    /// progress. Default: they are not observed.
    pub fn with_observation(mut self, observation: Duration) -> Self {
        self.observation = Some(observation);
        self
    }

    /// Accepts findings of this kind, in addition to those of earlier calls: they are reported, but
    /// the deployment counts as sound.
    pub fn accept(mut self, kind: FindingKind) -> Self {
        self.accepted.push(kind);
        self
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    topics: Vec<String>,
    #[serde(default)]
    dead_letter_topics: Vec<String>,
    #[serde(default)]
    retry_topics: Vec<RetryTopic>,
    drain_timeout: Option<HumanDuration>,
    grace_period: Option<HumanDuration>,
    handler_timeout: Option<HumanDuration>,
    #[serde(default)]
    has_inbox: bool,
    kafka: Table,
    layer: IdempotencyConfig,
    redis: Option<RedisConfig>,
    postgres: Option<PgConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryTopic {
    topic: String,
    delay: HumanDuration,
}

/// Replaces `${NAME}` in every string.
fn replace_variables(
    value: &mut Value,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    match value {
        Value::String(text) => {
            // A value is not searched for further variables.
            let (mut replaced, mut rest) = (String::new(), &**text);
            while let Some((before, after)) = rest.split_once("${") {
                let (name, after) =
                    after.split_once('}').ok_or_else(|| ConfigError::new("a `${` has no `}`"))?;
                let value = variable(name).ok_or_else(|| {
                    ConfigError::new(format!("the environment variable `{name}` is not set"))
                })?;
                replaced.push_str(before);
                replaced.push_str(&value);
                rest = after;
            }
            replaced.push_str(rest);
            *text = replaced;
            Ok(())
        }
        Value::Array(values) => {
            values.iter_mut().try_for_each(|value| replace_variables(value, variable))
        }
        Value::Table(table) => {
            table.iter_mut().try_for_each(|(_, value)| replace_variables(value, variable))
        }
        _ => Ok(()),
    }
}

/// Converts a setting of librdkafka, which takes strings only. The value may be a secret.
fn kafka_setting((name, value): (String, Value)) -> Result<(String, String), ConfigError> {
    let value = match value {
        Value::String(value) => value,
        Value::Integer(value) => value.to_string(),
        Value::Boolean(value) => value.to_string(),
        _ => return Err(ConfigError::new(format!("`{name}` in `kafka` must be a string"))),
    };
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_in_strings() {
        let text = format!(
            "topics = [\"${{PREFIX}}.payments\"]\n{KAFKA}\"sasl.password\" = \"a${{PW}}b\"\n\
             \"session.timeout.ms\" = 6000\n[layer]\nnamespace = \"n\"\n\
             [redis]\nurl = \"redis://:${{PW}}@r\"\n"
        );
        let variable = |name: &str| match name {
            "PREFIX" => Some("eu".to_owned()),
            "PW" => Some("s3${PREFIX}cret".to_owned()),
            _ => None,
        };
        let deployment = Deployment::parse(&text, variable).unwrap();
        assert_eq!(deployment.topics, ["eu.payments"]);
        assert_eq!(deployment.consumer.get("sasl.password"), Some("as3${PREFIX}cretb"));
        assert_eq!(deployment.consumer.get("session.timeout.ms"), Some("6000"));
        let error = Deployment::parse(&text, |_| None).unwrap_err().to_string();
        assert!(error.contains("is not set"), "{error}");
    }

    const KAFKA: &str = "[kafka]\n\"bootstrap.servers\" = \"b:1\"\n\"group.id\" = \"g\"\n";

    #[test]
    fn invalid_file_is_refused_without_showing_secrets() {
        let secret = "\"sasl.password\" = s3cret\n";
        let layer = "[layer]\nnamespace = \"n\"\n";
        let redis = "[redis]\nurl = \"redis://:s3cret@r\"\n";
        let postgres = "[postgres]\nurl = \"postgres://u:s3cret@p\"\n";
        for (text, expected) in [
            (format!("{KAFKA}{layer}{redis}"), "missing field `topics`"),
            (format!("topics = []\n{KAFKA}{redis}"), "missing field `layer`"),
            (format!("topics = []\n{KAFKA}{layer}"), "exactly one of the tables"),
            (format!("topics = []\n{KAFKA}{layer}{redis}{postgres}"), "exactly one of the tables"),
            (format!("topics = []\n{KAFKA}{layer}{redis}urls = 1"), "unknown field `urls`"),
            (format!("topics = []\n{KAFKA}{secret}{layer}{redis}"), "line 5"),
            (format!("topics = []\n{KAFKA}a = [\"s3cret\"]\n{layer}{redis}"), "must be a string"),
            (format!("topics = [\"${{s3cret\"]\n{KAFKA}{layer}{redis}"), "has no `}`"),
        ] {
            let error = Deployment::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }
}
