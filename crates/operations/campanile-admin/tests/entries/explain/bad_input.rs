//! What is no situation but an error.

use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::explain::{Cause, Explain, KeySource};
use campanile_idempotency::{InspectStore, MemoryStore, StoreError};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::{HEADER, KAFKA, kafka_config};
use crate::list::{Broken, WithGarbage};
use crate::planter::namespace;

async fn explain_error(
    kafka: &ClientConfig,
    store: &impl InspectStore,
    record: &str,
) -> AdminError {
    let explain = Explain::new(record.parse().unwrap(), namespace());
    let explain = explain.with_timeout(Duration::from_secs(10));
    explain.run(kafka, store, &KeySource::default()).await.unwrap_err()
}

fn text(error: &AdminError) -> String {
    let texts: Vec<_> = campanile_core::error::sources(error).map(ToString::to_string).collect();
    texts.join(": ")
}

async fn topic(name: &'static str) {
    let create = move || {
        KAFKA.create_topic(name, 2, &[]).unwrap();
        let record = Message::to(name).partition(0).header(HEADER, "garbage");
        KAFKA.producer().produce(record).unwrap();
    };
    tokio::task::spawn_blocking(create).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topic_and_partition_are_named() {
    topic("small").await;
    let store = MemoryStore::new();
    let error = explain_error(&kafka_config(), &store, "smal/0@0").await;
    assert!(matches!(error, AdminError::Config(_)), "{error:?}");
    assert_eq!(error.to_string(), "there is no topic `smal`");
    let error = explain_error(&kafka_config(), &store, "small/2@0").await;
    assert!(matches!(error, AdminError::Config(_)), "{error:?}");
    assert_eq!(error.to_string(), "the topic `small` has no partition 2: it has 2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_errors_end_the_explanation() {
    topic("stored").await;
    let store = Broken(StoreError::misconfigured);
    let error = explain_error(&kafka_config(), &store, "stored/0@0").await;
    assert!(matches!(error, AdminError::Config(_)), "{error:?}");
    let store = Broken(StoreError::unavailable);
    let error = explain_error(&kafka_config(), &store, "stored/0@0").await;
    assert!(
        text(&error).starts_with("cannot read the entry: the store is unavailable"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_shows_cause_hint_group_and_entry() {
    topic("shown").await;
    let store = WithGarbage(MemoryStore::new());
    let explain = Explain::new("shown/0@0".parse().unwrap(), namespace()).with_group("unknown");
    let explanation = explain.run(&kafka_config(), &store, &KeySource::default()).await.unwrap();
    assert_eq!(explanation.cause, Cause::Unreadable);
    let text = explanation.to_string();
    for part in [
        "shown/0@0: The value in the store is no entry of this version",
        "Use the version that wrote the value",
        "partition offsets from 0 to before 1",
        "group     unknown: no committed offset",
        "state     unreadable: unreadable entry: first byte is 0xc2",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let value = serde_json::to_value(&explanation).unwrap();
    assert_eq!((&value["cause"], &value["end"]), (&"unreadable".into(), &1.into()));
    assert_eq!(value["entry"]["state"], "unreadable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinator_that_is_away_is_asked_again() {
    let kafka = tokio::task::spawn_blocking(|| {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("moved", 1).unwrap();
        kafka.producer().produce(Message::to("moved").header(HEADER, "p-1")).unwrap();
        // librdkafka itself tries again some times.
        let away = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR; 8];
        kafka.cluster().request_errors(RDKafkaApiKey::OffsetFetch, &away);
        kafka
    });
    let kafka = kafka.await.unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.bootstrap());
    let explain = Explain::new("moved/0@0".parse().unwrap(), namespace()).with_group("billing");
    let explained = explain.run(&config, &MemoryStore::new(), &KeySource::default()).await;
    assert_eq!(explained.unwrap().cause, Cause::NoCommittedOffset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_brokers_are_reported_soon() {
    let mut kafka = ClientConfig::new();
    kafka.set("bootstrap.servers", "127.0.0.1:1");
    let error = explain_error(&kafka, &MemoryStore::new(), "payments/0@0").await;
    assert!(matches!(error, AdminError::Unavailable { .. }), "{error:?}");
    let text = text(&error);
    assert!(text.starts_with("cannot reach the brokers") && text.contains("127.0.0.1:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_setting_is_named() {
    let mut kafka = kafka_config();
    kafka.set("no.such.setting", "1");
    let error = explain_error(&kafka, &MemoryStore::new(), "payments/0@0").await;
    assert!(matches!(error, AdminError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("no.such.setting"), "{error}");
}
