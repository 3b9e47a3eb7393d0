//! The configuration of transactions.

use std::fmt;
use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaResult;
use rdkafka::producer::ThreadedProducer;

use super::context::Deliveries;
use crate::client::{ClientSettings, main_name};
use crate::config::config_error;
use crate::log::LogLimit;
use crate::publish::shared_settings;

/// Configures how a service's outputs are committed together with the offsets of its input records, in
/// [`Consumer::serve_transactional`](crate::Consumer::serve_transactional).
///
/// # The transactional id
/// Each instance of the program needs an id of its own, and keeps it across restarts: for example with
/// the number of its pod in a stateful set. Two running instances with the same id fence each other: the
/// later one ends the earlier one. The earlier one survives only if it was just aborting a transaction,
/// or had a transaction open for longer than `transaction.timeout.ms`: it then continues with a new
/// producer, which takes the id back.
///
/// An instance that is killed leaves its transaction open. When it restarts with the same id, it aborts
/// that transaction at once. Otherwise, readers of its outputs with `isolation.level=read_committed` and
/// the next owners of its partitions wait until the brokers abort the transaction, after
/// `transaction.timeout.ms`.
///
/// `Debug` does not print the values of settings.
#[derive(Clone)]
#[must_use]
pub struct Transactions {
    id: String,
    interval: Duration,
    settings: Vec<(String, String)>,
}

/// Validated settings, for one consumer.
#[derive(Clone)]
pub(crate) struct TransactionSettings {
    client: ClientSettings,
    /// The settings of the consumer itself.
    pub(super) consumer: ClientSettings,
    /// `transaction.timeout.ms`.
    pub(super) timeout: Duration,
    pub(super) id: String,
    pub(crate) interval: Duration,
    /// The limit of the log of all producers, because each aborted transaction replaces its producer.
    log_limit: LogLimit,
}

/// Keeps the time of the next commit within the clock's range.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

const TRANSACTION_TIMEOUT: &str = "transaction.timeout.ms";
/// How long the delivery of an output is retried.
const DELIVERY_TIMEOUT: &str = "message.timeout.ms";
/// How long to wait for a topic that does not exist.
const TOPIC_PROPAGATION_TIME: &str = "topic.metadata.propagation.max.ms";

/// Defaults for settings that the user has not set.
const DEFAULTS: &[(&str, &str)] = &[
    // Below the session timeout, so that the next owners of a killed instance's partitions do not
    // also wait for its transaction.
    (TRANSACTION_TIMEOUT, "30000"),
    // Leaves the limit to the target topic.
    ("message.max.bytes", "100000000"),
    // Chooses the partition of a key as Kafka's own clients do.
    ("partitioner", "murmur2_random"),
];

/// Settings that the user cannot set, with the reason.
const RESERVED: &[(&str, &str)] = &[
    ("transactional.id", "pass it to `Transactions::new`"),
    ("bootstrap.servers", "a transaction cannot extend beyond the consumer's cluster"),
];

impl Transactions {
    /// Creates a configuration with this `transactional.id`.
    pub fn new(transactional_id: impl Into<String>) -> Self {
        Self {
            id: transactional_id.into(),
            interval: Duration::from_millis(100),
            settings: Vec::new(),
        }
    }

    /// Sets how often finished records are committed. A reader with `isolation.level=read_committed`
    /// waits this long for an output. Records are committed sooner when the
    /// [budget](crate::Consumer::with_budget) is half full.
    ///
    /// Default: 100 ms, because each transaction costs several round trips to the brokers, and a marker
    /// in every partition that it has written to. At most a day.
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval.min(MAX_INTERVAL);
        self
    }

    /// Sets a librdkafka setting of the producer. It overrides the consumer's setting: the producer
    /// inherits the brokers, the security settings and all others that are not specific to consumers. It
    /// also overrides these defaults:
    ///
    /// * `transaction.timeout.ms=30000`: below the consumer's session timeout, so that an abandoned
    ///   transaction holds up nothing for longer than its partitions do.
    /// * `partitioner=murmur2_random`: the same as in Kafka's own clients.
    /// * `message.max.bytes=100000000`: the topic decides which messages are too large.
    /// * `message.timeout.ms` is two thirds of the transaction timeout, and
    ///   `topic.metadata.propagation.max.ms` one third, so that the cause of a failure is known before
    ///   the brokers abort the transaction.
    ///
    /// If a topic's `max.message.bytes` is below librdkafka's `batch.size` of 1 MB, lower `batch.size` as
    /// well: an output that is refused together with others is retried alone, and from then on every
    /// output is sent alone, which is slower.
    ///
    /// Contradictory settings are refused when serving starts: the id and the brokers cannot be set here,
    /// and librdkafka refuses settings that transactions do not allow, such as `acks` other than `all`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Applies these settings over a consumer's, and refuses contradictions.
    pub(crate) fn checked(
        self,
        consumer: &ClientSettings,
    ) -> Result<TransactionSettings, ConfigError> {
        if self.id.trim().is_empty() {
            return Err(ConfigError::new("`transactional.id` must not be empty"));
        }
        if consumer.get("isolation.level") == Some("read_uncommitted") {
            return Err(ConfigError::new(
                "`isolation.level` must be `read_committed` or left out when records are served in \
                 transactions: otherwise the next owner of a partition does not wait for the offset \
                 of a transaction that is being committed, and sends its outputs again",
            ));
        }
        let mut client = shared_settings(consumer);
        for (name, value) in &self.settings {
            let main = main_name(name);
            if let Some((_, why)) = RESERVED.iter().find(|(reserved, _)| *reserved == main) {
                return Err(ConfigError::new(format!("cannot set the producer's `{name}`: {why}")));
            }
            client.set(name, value);
        }
        for &(name, value) in DEFAULTS {
            client.set_default(name, value);
        }
        client.set("transactional.id", &self.id);
        client.create_native_config().map_err(config_error)?;
        let timeout =
            client.get(TRANSACTION_TIMEOUT).and_then(|millis| millis.trim().parse::<u64>().ok());
        let timeout = timeout.ok_or_else(|| {
            ConfigError::new(format!("`{TRANSACTION_TIMEOUT}` must be a number of milliseconds"))
        })?;
        // Delivery must fail before the brokers abort the transaction, and the lookup of a topic that
        // does not exist even earlier. Otherwise the only error is that the producer is fenced.
        let third = timeout / 3;
        client.set_default(DELIVERY_TIMEOUT, (third * 2).to_string());
        client.set_default(TOPIC_PROPAGATION_TIME, third.to_string());
        let timeout = Duration::from_millis(timeout);
        Ok(TransactionSettings {
            client,
            consumer: consumer.clone(),
            timeout,
            id: self.id,
            interval: self.interval,
            log_limit: LogLimit::default(),
        })
    }
}

impl TransactionSettings {
    /// Reads the addresses of the brokers, for log events.
    pub(super) fn brokers(&self) -> Option<&str> {
        self.client.brokers()
    }

    /// Creates a producer, which is not initialized yet. With `unbatched`, each output is
    /// sent in a batch of its own: this is slower, but no output is refused because of another one.
    pub(super) fn producer(&self, unbatched: bool) -> KafkaResult<ThreadedProducer<Deliveries>> {
        let mut client = self.client.clone();
        if unbatched {
            client.set("batch.num.messages", "1");
        }
        let context = Deliveries::new(unbatched, client.tokens.clone(), self.log_limit.clone());
        ThreadedProducer::from_config_and_context(&client, context)
    }
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings.iter().map(|(name, _)| name);
        f.debug_struct("Transactions")
            .field("transactional_id", &self.id)
            .field("interval", &self.interval)
            .field("settings", &settings.collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::producer::Producer as _;

    use super::*;
    use crate::ConsumerConfig;

    fn consumer() -> ConsumerConfig {
        ConsumerConfig::new("localhost:9092", "g")
    }

    fn refused(transactions: Transactions, consumer: ConsumerConfig) -> String {
        let consumer = consumer.checked().unwrap().client;
        transactions.checked(&consumer).err().unwrap().to_string()
    }

    #[test]
    fn contradictory_settings_are_refused() {
        let with = |name, value| refused(Transactions::new("t").set(name, value), consumer());
        for name in ["transactional.id", "bootstrap.servers", "metadata.broker.list"] {
            assert!(with(name, "x").contains(name));
        }
        assert!(with("no.such.setting", "1").contains("no.such.setting"));
        assert!(refused(Transactions::new(" "), consumer()).contains("transactional.id"));
    }

    #[test]
    fn read_uncommitted_consumer_is_refused() {
        for value in ["read_uncommitted", "READ_UNCOMMITTED", " Read_Uncommitted"] {
            let dirty = consumer().set("isolation.level", value);
            assert!(refused(Transactions::new("t"), dirty).contains("isolation.level"));
        }
        let clean = consumer().set("isolation.level", "read_committed").checked().unwrap();
        assert!(Transactions::new("t").checked(&clean.client).is_ok());
    }

    #[test]
    fn interval_is_at_most_a_day() {
        let longest = Transactions::new("t").with_interval(Duration::MAX);
        let settings = longest.checked(&consumer().checked().unwrap().client).unwrap();
        assert_eq!(settings.interval, MAX_INTERVAL);
    }

    #[test]
    fn delivery_times_out_before_the_transaction() {
        let times = |transactions: Transactions| {
            let settings = transactions.checked(&consumer().checked().unwrap().client).unwrap();
            let of = |name| settings.client.get(name).map(str::to_owned);
            (
                of(TOPIC_PROPAGATION_TIME),
                of(DELIVERY_TIMEOUT),
                of("delivery.timeout.ms"),
                settings.timeout.as_millis(),
            )
        };
        let text = |text: &str| Some(text.to_owned());
        let new = || Transactions::new("t");
        assert_eq!(times(new()), (text("10000"), text("20000"), None, 30_000));
        let long = new().set(TRANSACTION_TIMEOUT, "60000").set("delivery.timeout.ms", "50000");
        assert_eq!(times(long), (text("20000"), None, text("50000"), 60_000));
        let soon = new().set(TOPIC_PROPAGATION_TIME, "500").set(DELIVERY_TIMEOUT, "600");
        assert_eq!(times(soon), (text("500"), text("600"), None, 30_000));
    }

    #[test]
    fn replaced_producers_share_the_limit_of_their_log() {
        let consumer = consumer().checked().unwrap().client;
        let settings = Transactions::new("t").checked(&consumer).unwrap();
        let producers = [false, false, true].map(|unbatched| settings.producer(unbatched).unwrap());
        let allowed = producers.map(|producer| producer.context().log_limit.allow("failed"));
        assert_eq!(allowed, [Some(0), None, None]);
    }

    #[test]
    fn debug_shows_no_secrets() {
        let text = format!("{:?}", Transactions::new("t").set("sasl.password", "s3cret"));
        assert!(text.contains("sasl.password") && !text.contains("s3cret"), "{text}");
    }
}
