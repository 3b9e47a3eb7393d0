//! What the user says about transactions.

use std::fmt;
use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaResult;
use rdkafka::producer::ThreadedProducer;

use super::producer::Deliveries;
use crate::config::refusal;
use crate::publish::shared_settings;

/// How what a service gives out is committed together with the offsets of what it took in:
/// [`Consumer::serve_transactional`](crate::Consumer::serve_transactional).
///
/// # The transactional id
/// Each instance of the program has an id of its own, and the same one when it is started again: with
/// the number of a pod in a stateful set, say. Two that run with one id fence each other: the later one
/// ends the earlier, unless that was just aborting a transaction, or one was open for longer than
/// `transaction.timeout.ms`: it goes on with another producer then, which takes the id back. An
/// instance that was killed leaves a transaction open; started again with its id, it aborts that at
/// once. Otherwise those who read its outputs with `isolation.level=read_committed`, and whoever takes
/// over its partitions, wait until the brokers do, after `transaction.timeout.ms`.
///
/// `Debug` prints no values of settings.
#[derive(Clone)]
pub struct Transactions {
    id: String,
    interval: Duration,
    settings: Vec<(String, String)>,
}

/// Settings that librdkafka takes, for one consumer.
#[derive(Clone)]
pub(crate) struct Terms {
    client: ClientConfig,
    /// The settings of the consumer itself.
    pub(super) consumer: ClientConfig,
    /// `transaction.timeout.ms`.
    pub(super) timeout: Duration,
    pub(super) id: String,
    pub(crate) interval: Duration,
}

const TIMEOUT: &str = "transaction.timeout.ms";
/// For how long an output is tried, under both names.
const DELIVERY: &[&str] = &["message.timeout.ms", "delivery.timeout.ms"];
/// For how long a topic that is not there is waited for.
const PROPAGATION: &str = "topic.metadata.propagation.max.ms";

/// Where the user has set nothing.
const DEFAULTS: &[(&str, &str)] = &[
    // Below the session time-out: whoever takes over from an instance that was killed does not wait for
    // its transaction as well.
    (TIMEOUT, "30000"),
    // The target topic decides, and not a limit of the producer's.
    ("message.max.bytes", "100000000"),
    // As Kafka's own clients choose the partition of a key.
    ("partitioner", "murmur2_random"),
];

/// Settings that are the mode's own.
const OWN: &[(&str, &str)] = &[
    ("transactional.id", "it is what `Transactions::new` takes"),
    ("bootstrap.servers", "a transaction cannot reach beyond the consumer's cluster"),
    ("metadata.broker.list", "a transaction cannot reach beyond the consumer's cluster"),
];

impl Transactions {
    /// Transactions of this `transactional.id`.
    pub fn new(transactional_id: impl Into<String>) -> Self {
        Self {
            id: transactional_id.into(),
            interval: Duration::from_millis(100),
            settings: Vec::new(),
        }
    }

    /// How often what is finished is committed: for so long a reader with
    /// `isolation.level=read_committed` waits for an output. It comes sooner when the
    /// [budget](crate::Consumer::with_budget) is half full.
    ///
    /// Default: 100 ms, because each transaction costs some round trips to the brokers, and a marker in
    /// every partition that it has written to.
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets one of librdkafka's settings for the producer. It wins over the consumer's, from which the
    /// producer has its brokers, its security and all else that is not a consumer's alone, and over
    /// these defaults: `transaction.timeout.ms=30000`, below the consumer's session time-out, so that
    /// nobody waits for a transaction that was left open for longer than for its partitions;
    /// `partitioner=murmur2_random`, as Kafka's own clients have it; `message.max.bytes=100000000`, for
    /// what is too large the topic decides; and, of the transaction's time, two thirds as
    /// `message.timeout.ms` and one as `topic.metadata.propagation.max.ms`, so that it is known what is
    /// wrong before the brokers abort it. Where a topic's `max.message.bytes` is below librdkafka's
    /// `batch.size` of 1 MB, set that lower as well: an output that is refused together with others is
    /// tried again alone, and from then on each is sent alone, which is slower.
    ///
    /// What contradicts is refused when serving begins: the id and the brokers are not set here, and
    /// librdkafka refuses what transactions do not allow, as `acks` other than `all`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// These over a consumer's settings.
    pub(crate) fn checked(self, consumer: &ClientConfig) -> Result<Terms, ConfigError> {
        if self.id.trim().is_empty() {
            return Err(ConfigError::new("`transactional.id` must not be empty"));
        }
        if consumer.get("isolation.level") == Some("read_uncommitted") {
            return Err(ConfigError::new(
                "`isolation.level` must be `read_committed` or left out where records are served in \
                 transactions: otherwise the next owner of a partition does not wait for the offset \
                 of a transaction that is being committed, and sends its outputs again",
            ));
        }
        let mut client = shared_settings(consumer);
        for (name, value) in &self.settings {
            if let Some((_, why)) = OWN.iter().find(|(own, _)| own == name) {
                return Err(ConfigError::new(format!("the producer's `{name}` is not set: {why}")));
            }
            client.set(name, value);
        }
        for &(name, value) in DEFAULTS {
            if client.get(name).is_none() {
                client.set(name, value);
            }
        }
        client.set("transactional.id", &self.id);
        client.create_native_config().map_err(refusal)?;
        let timeout = client.get(TIMEOUT).and_then(|millis| millis.trim().parse::<u64>().ok());
        let timeout = timeout.ok_or_else(|| {
            ConfigError::new(format!("`{TIMEOUT}` must be a number of milliseconds"))
        })?;
        // What is not delivered is told before the brokers abort the transaction, and a topic that does
        // not exist before that: otherwise all that is told is that the producer is fenced.
        let third = timeout / 3;
        if !DELIVERY.iter().any(|name| client.get(name).is_some()) {
            client.set(DELIVERY[0], (third * 2).to_string());
        }
        if client.get(PROPAGATION).is_none() {
            client.set(PROPAGATION, third.to_string());
        }
        let timeout = Duration::from_millis(timeout);
        Ok(Terms {
            client,
            consumer: consumer.clone(),
            timeout,
            id: self.id,
            interval: self.interval,
        })
    }
}

impl Terms {
    /// A producer, which has not begun yet. Sending each output alone is slower, and refuses no output
    /// because of another.
    pub(super) fn producer(&self, alone: bool) -> KafkaResult<ThreadedProducer<Deliveries>> {
        let mut client = self.client.clone();
        if alone {
            client.set("batch.num.messages", "1");
        }
        ThreadedProducer::from_config_and_context(&client, Deliveries::new(alone))
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
    fn what_would_break_a_transaction_is_refused() {
        let with = |name, value| refused(Transactions::new("t").set(name, value), consumer());
        for name in ["transactional.id", "bootstrap.servers", "metadata.broker.list"] {
            assert!(with(name, "x").contains(name));
        }
        assert!(with("no.such.setting", "1").contains("no.such.setting"));
        assert!(refused(Transactions::new(" "), consumer()).contains("transactional.id"));
    }

    #[test]
    fn a_consumer_that_does_not_wait_for_open_transactions_is_refused() {
        let dirty = consumer().set("isolation.level", "read_uncommitted");
        assert!(refused(Transactions::new("t"), dirty).contains("isolation.level"));
        let clean = consumer().set("isolation.level", "read_committed").checked().unwrap();
        assert!(Transactions::new("t").checked(&clean.client).is_ok());
    }

    #[test]
    fn what_is_wrong_is_known_before_the_brokers_abort_the_transaction() {
        let times = |transactions: Transactions| {
            let terms = transactions.checked(&consumer().checked().unwrap().client).unwrap();
            let of = |name| terms.client.get(name).map(str::to_owned);
            (of(PROPAGATION), of(DELIVERY[0]), of(DELIVERY[1]), terms.timeout.as_millis())
        };
        let text = |text: &str| Some(text.to_owned());
        let new = || Transactions::new("t");
        assert_eq!(times(new()), (text("10000"), text("20000"), None, 30_000));
        let long = new().set(TIMEOUT, "60000").set(DELIVERY[1], "50000");
        assert_eq!(times(long), (text("20000"), None, text("50000"), 60_000));
        let soon = new().set(PROPAGATION, "500").set(DELIVERY[0], "600");
        assert_eq!(times(soon), (text("500"), text("600"), None, 30_000));
    }

    #[test]
    fn its_debug_shows_no_secrets() {
        let text = format!("{:?}", Transactions::new("t").set("sasl.password", "s3cret"));
        assert!(text.contains("sasl.password") && !text.contains("s3cret"), "{text}");
    }
}
