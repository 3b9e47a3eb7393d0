//! Topics that keep records longer than their entries are kept are reported, once per topic.

use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use campanile_kafka::Consumer;
use campanile_test::{KafkaServer, Message, MockKafka};
use tower::{Service, ServiceBuilder};

use crate::Written;
use crate::support::{consumer, serve, start, until};

const LONGER: &str = "records of this topic are kept for longer";
const UNKNOWN: &str = "could not check whether records are kept";
const HOUR: &str = "3600000";

/// A stack that keeps entries for a day.
fn for_a_day() -> impl Service<Record, Response: Send, Error = BoxError, Future: Send> + Clone + Send
{
    let layer = IdempotencyLayer::new(MemoryStore::new(), "orders", key::coordinates()).unwrap();
    let layer = layer.with_retention(Duration::from_secs(86_400)).unwrap();
    ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(async |_: Request| Ok::<_, BoxError>(()))
}

#[tokio::test(flavor = "current_thread")]
async fn a_topic_that_keeps_records_for_longer_than_their_entries_is_told_with_both_times() {
    let topics: [(&str, &[(&str, &str)]); 5] = [
        ("hour", &[("retention.ms", HOUR)]),
        ("day", &[("retention.ms", "86400000")]),
        // The brokers' default.
        ("week", &[]),
        ("ever", &[("retention.ms", "-1")]),
        ("compacted", &[("cleanup.policy", "compact"), ("retention.ms", HOUR)]),
    ];
    let start_kafka = move || {
        let kafka = KafkaServer::start().unwrap();
        for (topic, config) in topics {
            kafka.create_topic(topic, 2, config).unwrap();
            let message = |partition| Message::to(topic).partition(partition).key("k");
            kafka.producer().produce_all((0..2).map(message)).unwrap();
        }
        kafka
    };
    let kafka = tokio::task::spawn_blocking(start_kafka).await.unwrap();
    let consumer = || {
        Consumer::new(kafka.consumer_config("g")).unwrap().subscribe(topics.map(|(name, _)| name))
    };

    let (written, guard) = Written::begin();
    let serving = start(consumer().serve(for_a_day()));
    let told = || written.lines("WARN", LONGER);
    until("three topics are reported", || told().len() >= 3).await;
    serving.stop().await.unwrap();
    for (topic, records) in [("week", "7 d"), ("ever", "forever"), ("compacted", "forever")] {
        let told = told();
        let line = told.iter().find(|line| line.contains(&format!("topic=\"{topic}\"")));
        let line = line.unwrap_or_else(|| panic!("{topic} is not in {told:?}"));
        for part in [&format!("records={records}"), "entries=1 d", "with_retention", "retention.ms"]
        {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    assert_eq!(told().len(), 3, "{}", written.text());
    assert!(written.lines("INFO", UNKNOWN).is_empty(), "{}", written.text());
    drop(guard);
    tokio::task::spawn_blocking(move || drop(kafka)).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn brokers_that_do_not_tell_are_told_as_not_looked_at() {
    let (written, _guard) = Written::begin();
    // The mock cluster does not answer the request.
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.producer().produce(Message::to("orders").partition(0)).unwrap();
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), for_a_day());
    until("the event is logged", || !written.lines("INFO", UNKNOWN).is_empty()).await;
    assert!(serving.handle().health().ready.is_ok());
    serving.stop().await.unwrap();
    assert!(written.lines("WARN", LONGER).is_empty(), "{}", written.text());
}

#[tokio::test(flavor = "current_thread")]
async fn a_drain_that_a_revoke_would_cut_is_told_at_the_start() {
    for (poll_interval, told) in [("30000", 0), ("10000", 1)] {
        let (written, _guard) = Written::begin();
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("orders", 1).unwrap();
        let mut config = kafka.consumer_config("g");
        config.set("max.poll.interval.ms", poll_interval).set("session.timeout.ms", "6000");
        let serving = serve(
            consumer(config, "orders").with_drain_timeout(Duration::from_secs(15)),
            for_a_day(),
        );
        let handle = serving.handle();
        until("the consumer is ready", || handle.health().ready.is_ok()).await;
        serving.stop().await.unwrap();
        let lines = written.lines("WARN", "less time to finish");
        assert_eq!(lines.len(), told, "{lines:?}");
        let parts = ["drain_timeout=15s", "at_a_revoke=5s", "`max.poll.interval.ms`"];
        assert!(lines.iter().all(|line| parts.iter().all(|part| line.contains(part))), "{lines:?}");
    }
}
