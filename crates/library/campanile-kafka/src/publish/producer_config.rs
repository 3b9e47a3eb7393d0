//! The producer's settings, derived from the consumer's.

use std::time::Duration;

use campanile_core::ConfigError;

use crate::client::{ClientSettings, main_name};
use crate::config::config_error;

/// Settings that a producer does not use: librdkafka warns about each of them.
const CONSUMER_SETTINGS: &[&str] = &[
    "group.id",
    "group.instance.id",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "group.protocol.type",
    "group.protocol",
    "group.remote.assignor",
    "coordinator.query.interval.ms",
    "max.poll.interval.ms",
    "enable.auto.commit",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "enable.auto.offset.store",
    "queued.min.messages",
    "queued.max.messages.kbytes",
    "fetch.wait.max.ms",
    "fetch.queue.backoff.ms",
    "fetch.message.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "fetch.error.backoff.ms",
    "offset.store.method",
    "offset.store.path",
    "offset.store.sync.interval.ms",
    "isolation.level",
    "enable.partition.eof",
    "check.crcs",
    "auto.offset.reset",
    "allow.auto.create.topics",
    "consume.callback.max.messages",
];

/// Defaults for settings that the user has not set.
const DEFAULTS: &[(&str, &str)] = &[
    // Leaves the limit to the target topic: a record can be as large as its own topic allows. A broker
    // closes the connection on requests above 100 MiB.
    ("message.max.bytes", "100000000"),
    // One message per batch: a broker refuses a batch as a whole, and one message must not cause others
    // to be refused.
    ("batch.num.messages", "1"),
    ("linger.ms", "0"),
    // A record that was compressed in its own topic may be too large uncompressed.
    ("compression.type", "lz4"),
    // Chooses the partition of a key as Kafka's own clients do.
    ("partitioner", "murmur2_random"),
];

pub(super) const TRANSACTIONAL_ID: &str = "transactional.id";

/// Copies the consumer's settings that apply to every client.
pub(crate) fn shared_settings(consumer: &ClientSettings) -> ClientSettings {
    let mut client = consumer.clone();
    for name in CONSUMER_SETTINGS {
        client.remove(name);
    }
    client
}

/// Builds a producer's settings: the consumer's, with the user's `overrides` for the producer over
/// them.
///
/// # Errors
/// Fails if one of the user's settings contradicts how messages are published: to the consumer's own
/// cluster, acknowledged by all replicas, within the driver's own timeout, and without a transaction.
pub(super) fn producer(
    consumer: &ClientSettings,
    overrides: &[(String, String)],
    attempt_timeout: Duration,
) -> Result<ClientSettings, ConfigError> {
    let mut client = shared_settings(consumer);
    for (name, value) in overrides {
        check_override(name, value)?;
        client.set(name, value);
    }
    for (name, value) in DEFAULTS {
        client.set_default(name, *value);
    }
    client.remove(TRANSACTIONAL_ID);
    client.set("acks", "all");
    client.set("message.timeout.ms", attempt_timeout.as_millis().max(1).to_string());
    client.create_native_config().map_err(config_error)?;
    Ok(client)
}

pub(super) fn check_override(name: &str, value: &str) -> Result<(), ConfigError> {
    let why = match main_name(name) {
        "acks" if !matches!(value, "all" | "-1") => {
            "a message counts as published only once all in-sync replicas have it"
        }
        "message.timeout.ms" => "it follows from the timeout of one publication",
        TRANSACTIONAL_ID => "messages are not published in a transaction",
        "bootstrap.servers" => {
            "it is already set: copies and dead letters go to the cluster that is consumed, where \
             their topics were looked up and are read"
        }
        _ => return Ok(()),
    };
    Err(ConfigError::new(format!("the producer's `{name}` cannot be `{value}`: {why}")))
}

#[cfg(test)]
mod tests {
    use rdkafka::config::FromClientConfigAndContext;
    use rdkafka::producer::BaseProducer;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::ConsumerConfig;

    const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

    fn set(name: &str, value: &str) -> Result<ClientSettings, ConfigError> {
        let consumer = ConsumerConfig::new("localhost:9092", "g").checked().unwrap().client;
        producer(&consumer, &[(name.to_owned(), value.to_owned())], ATTEMPT_TIMEOUT)
    }

    #[test]
    fn producer_inherits_consumer_settings_below_overrides() {
        let consumer = ConsumerConfig::new("localhost:9092", "g")
            .set("client.id", "billing")
            .set("socket.timeout.ms", "5000");
        let consumer = consumer.checked().unwrap().client;
        let own = [("client.id".to_owned(), "billing-dead".to_owned())];
        let client = producer(&consumer, &own, ATTEMPT_TIMEOUT).unwrap();
        assert_eq!(client.get("bootstrap.servers"), Some("localhost:9092"));
        assert_eq!(client.get("socket.timeout.ms"), Some("5000"));
        assert_eq!(client.get("client.id"), Some("billing-dead"));
        assert_eq!(client.get("acks"), Some("all"));
        assert_eq!(client.get("group.id"), None);
    }

    #[test]
    fn inherited_settings_of_messages_are_replaced() {
        let consumer = ConsumerConfig::new("localhost:9092", "g")
            .set("request.required.acks", "1")
            .set("delivery.timeout.ms", "5000")
            .set("transactional.id", "t");
        let client = producer(&consumer.checked().unwrap().client, &[], ATTEMPT_TIMEOUT).unwrap();
        let set = |name| client.get(name);
        assert_eq!((set("acks"), set("request.required.acks")), (Some("all"), None));
        assert_eq!((set("message.timeout.ms"), set("delivery.timeout.ms")), (Some("1000"), None));
        assert_eq!(set("transactional.id"), None);
    }

    #[test]
    fn override_under_another_name_replaces_the_default() {
        for (name, default, value) in [
            ("compression.codec", "compression.type", "none"),
            ("queue.buffering.max.ms", "linger.ms", "5"),
        ] {
            let client = set(name, value).unwrap();
            assert_eq!((client.get(name), client.get(default)), (Some(value), None));
        }
    }

    #[test]
    fn contradictory_overrides_are_refused() {
        for (name, value) in [
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("message.timeout.ms", "5000"),
            ("transactional.id", "t"),
            ("bootstrap.servers", "elsewhere:9092"),
            ("metadata.broker.list", "elsewhere:9092"),
            ("no.such.setting", "1"),
        ] {
            let error = set(name, value).err().unwrap().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(set("acks", "all").is_ok());
    }

    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    impl rdkafka::ClientContext for Warnings {
        fn log(&self, _: rdkafka::config::RDKafkaLogLevel, facility: &str, message: &str) {
            if facility == "CONFWARN" {
                self.0.lock().unwrap().push(message.to_owned());
            }
        }
    }

    impl rdkafka::producer::ProducerContext for Warnings {
        type DeliveryOpaque = ();
        fn delivery(&self, _: &rdkafka::message::DeliveryResult<'_>, _: ()) {}
    }

    #[test]
    fn inherited_settings_cause_no_librdkafka_warning() {
        let consumer = ConsumerConfig::new("127.0.0.1:1", "g")
            .set("isolation.level", "read_uncommitted")
            .set("check.crcs", "true")
            .set("session.timeout.ms", "9000")
            .set("allow.auto.create.topics", "true");
        let client = producer(&consumer.checked().unwrap().client, &[], ATTEMPT_TIMEOUT).unwrap();
        let warnings = Warnings::default();
        let producer: BaseProducer<Warnings> =
            BaseProducer::from_config_and_context(&client, warnings.clone()).unwrap();
        producer.poll(Duration::from_millis(10));
        assert_eq!(*warnings.0.lock().unwrap(), Vec::<String>::new());
    }
}
