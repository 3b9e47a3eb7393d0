//! The consumer's settings for librdkafka.

use std::fmt;

use campanile_core::ConfigError;
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use tracing::level_filters::LevelFilter;

/// What the driver does by itself; librdkafka must not do it as well.
const FORCED_OFF: &[&str] = &["enable.auto.commit", "enable.auto.offset.store"];

/// Where the user has set nothing.
const DEFAULTS: &[(&str, &str)] = &[
    // A new group, or one whose offset is gone, skips nothing; what it meets again are duplicates.
    ("auto.offset.reset", "earliest"),
    // As the Java client does. What is corrupt on its way or on a broker's disk is not processed.
    ("check.crcs", "true"),
    // For each of the queues that partitions share. The driver has a budget beside.
    ("queued.min.messages", "300"),
    ("queued.max.messages.kbytes", "128"),
    // Shorter runs of one partition.
    ("max.partition.fetch.bytes", "65536"),
    // After a full queue, look again soon; the default is a second.
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.wait.max.ms", "10"),
];

/// The largest fetch unless the user has set a size that this one would contradict. Uncompressed
/// records pin the response they came in.
const FETCH_MAX_BYTES: (&str, &str) = ("fetch.max.bytes", "2097152");
const MESSAGE_SIZES: &[&str] = &["message.max.bytes", "receive.message.max.bytes"];

/// The settings of a consumer: librdkafka's names and values, over the driver's defaults.
///
/// ```
/// use campanile_kafka::ConsumerConfig;
///
/// let config = ConsumerConfig::new("localhost:9092", "billing")
///     .set("security.protocol", "plaintext")
///     .set("session.timeout.ms", "10000");
/// ```
///
/// Defaults that differ from librdkafka's: `partition.assignment.strategy` is `cooperative-sticky`
/// (except with `group.protocol=consumer`), `auto.offset.reset` is `earliest`, `check.crcs` is `true`,
/// and the queues are small, because the driver has a budget of its own. `enable.auto.commit` and
/// `enable.auto.offset.store` are always `false`.
///
/// Records that do not match their checksum, or that librdkafka cannot read, end serving with an error
/// that names their partition. Nothing behind them is processed or committed. To skip them, set the
/// group's offset behind them; to process what is there, set `check.crcs` to `false`.
///
/// With an `auto.offset.reset` of `latest`, a group skips what a partition has before the group first
/// reads from it. Where that is becomes known by the first record that comes, and is committed with that
/// record still unfinished, so that whoever goes on misses none from there on. Of a partition from which
/// nothing came yet nothing is committed: what is produced there between a stop and the next start is
/// skipped, too.
#[derive(Clone)]
pub struct ConsumerConfig(pub(crate) ClientConfig);

impl ConsumerConfig {
    /// For these brokers (`host:port`, separated by commas) and this group.
    pub fn new(brokers: impl Into<String>, group: impl Into<String>) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", group);
        Self(config)
    }

    /// Sets one of librdkafka's settings; it wins over the driver's default. An unknown name is
    /// refused by [`Consumer::new`](crate::Consumer::new).
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.set(name, value);
        self
    }

    /// Adds the defaults, and refuses what contradicts.
    pub(crate) fn checked(mut self) -> Result<Checked, ConfigError> {
        let brokers = self.required(&["bootstrap.servers", "metadata.broker.list"])?;
        let group = self.required(&["group.id"])?;
        self.force_off()?;
        self.add_defaults();
        let native = self.0.create_native_config().map_err(refusal)?;
        let poll_interval = native.get("max.poll.interval.ms").map_err(refusal)?;
        let max_poll_interval_ms = poll_interval.parse().map_err(|_| {
            ConfigError::new(format!("max.poll.interval.ms is not a number: {poll_interval}"))
        })?;
        self.0.set_log_level(log_level());
        Ok(Checked { client: self.0, brokers, group, max_poll_interval_ms })
    }

    /// The value of a setting that must be there, under one of its names.
    fn required(&self, names: &[&str]) -> Result<String, ConfigError> {
        let value = names.iter().find_map(|name| self.0.get(name));
        match value.map(str::trim) {
            Some(value) if !value.is_empty() => Ok(value.to_owned()),
            _ => Err(ConfigError::new(format!("`{}` must be set", names[0]))),
        }
    }

    fn force_off(&mut self) -> Result<(), ConfigError> {
        for &name in FORCED_OFF {
            if let Some(value) = self.0.get(name)
                && !matches!(value, "false" | "f" | "0")
            {
                return Err(ConfigError::new(format!(
                    "`{name}` is `{value}`, but must be `false` or left out: offsets are committed \
                     by the driver, once their records are finished"
                )));
            }
            self.0.set(name, "false");
        }
        Ok(())
    }

    fn add_defaults(&mut self) {
        DEFAULTS.iter().for_each(|&default| self.default(default));
        if MESSAGE_SIZES.iter().all(|name| self.0.get(name).is_none()) {
            self.default(FETCH_MAX_BYTES);
        }
        // In the newer protocol the broker assigns, and a strategy of the client's is refused.
        if self.0.get("group.protocol").is_none_or(|protocol| protocol == "classic") {
            self.default(("partition.assignment.strategy", "cooperative-sticky"));
        }
    }

    fn default(&mut self, (name, value): (&str, &str)) {
        if self.0.get(name).is_none() {
            self.0.set(name, value);
        }
    }
}

impl From<ClientConfig> for ConsumerConfig {
    fn from(config: ClientConfig) -> Self {
        Self(config)
    }
}

/// Shows the brokers and the group only: other settings may be secrets.
impl fmt::Debug for ConsumerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerConfig")
            .field("bootstrap.servers", &self.0.get("bootstrap.servers"))
            .field("group.id", &self.0.get("group.id"))
            .finish_non_exhaustive()
    }
}

/// Settings that librdkafka takes, as far as that can be told without a client.
pub(crate) struct Checked {
    pub(crate) client: ClientConfig,
    pub(crate) brokers: String,
    pub(crate) group: String,
    pub(crate) max_poll_interval_ms: u64,
}

/// In our terms, why librdkafka refuses a setting.
pub(crate) fn refusal(error: KafkaError) -> ConfigError {
    ConfigError::new(match error {
        // The value may be a secret.
        KafkaError::ClientConfig(_, description, name, _) => format!("`{name}`: {description}"),
        error => error.to_string(),
    })
}

/// What `auto.offset.reset` is, unless a group without an offset begins at the start of a partition.
pub(crate) fn begins_elsewhere(client: &ClientConfig) -> Option<&str> {
    client
        .get("auto.offset.reset")
        .filter(|reset| !matches!(*reset, "earliest" | "smallest" | "beginning"))
}

/// As much of librdkafka's log as somebody listens to.
fn log_level() -> RDKafkaLogLevel {
    match LevelFilter::current() {
        LevelFilter::OFF | LevelFilter::ERROR => RDKafkaLogLevel::Error,
        LevelFilter::WARN => RDKafkaLogLevel::Warning,
        LevelFilter::INFO => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: ConsumerConfig) -> String {
        config.checked().err().unwrap().to_string()
    }

    fn config() -> ConsumerConfig {
        ConsumerConfig::new("localhost:9092", "g")
    }

    #[test]
    fn without_brokers_or_a_group_it_is_refused() {
        assert_eq!(refused(ConsumerConfig::new("", "g")), "`bootstrap.servers` must be set");
        assert_eq!(refused(ConsumerConfig::new("b:1", " ")), "`group.id` must be set");
        assert_eq!(refused(ClientConfig::new().into()), "`bootstrap.servers` must be set");
    }

    #[test]
    fn automatic_commits_are_off_and_cannot_be_turned_on() {
        let client = config().checked().unwrap().client;
        for &name in FORCED_OFF {
            assert_eq!(client.get(name), Some("false"));
            assert!(config().set(name, "false").checked().is_ok());
            let text = refused(config().set(name, "true"));
            assert!(text.contains(name) && text.contains("driver"), "{text}");
        }
    }

    #[test]
    fn a_name_or_value_that_librdkafka_does_not_know_is_refused_without_showing_the_value() {
        assert!(refused(config().set("group.idd", "x")).contains("group.idd"));
        let text = refused(config().set("session.timeout.ms", "s3cret"));
        assert!(text.contains("session.timeout.ms") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn what_the_user_sets_wins_over_the_defaults() {
        let client = config().set("fetch.wait.max.ms", "500").checked().unwrap().client;
        assert_eq!(client.get("fetch.wait.max.ms"), Some("500"));
        assert_eq!(client.get("partition.assignment.strategy"), Some("cooperative-sticky"));
    }

    #[test]
    fn the_newer_protocol_gets_no_assignment_strategy() {
        let client = config().set("group.protocol", "consumer").checked().unwrap().client;
        assert_eq!(client.get("partition.assignment.strategy"), None);
    }

    #[test]
    fn a_larger_message_size_is_not_contradicted_by_our_fetch_size() {
        let checked = config().set("message.max.bytes", "10000000").checked().unwrap();
        checked.client.create::<rdkafka::consumer::BaseConsumer>().unwrap();
    }

    #[test]
    fn its_debug_shows_no_secrets() {
        let text = format!("{:?}", config().set("sasl.password", "s3cret"));
        assert!(!text.contains("s3cret"), "{text}");
    }
}
