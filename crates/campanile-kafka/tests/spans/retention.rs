//! Topics that keep records longer than their entries are kept are reported, once per topic.

use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
use campanile_kafka::Consumer;
use campanile_test::{KafkaServer, Message, MockKafka};
use tower::{Service, ServiceBuilder};

use crate::CapturedLog;
use crate::support::{consumer, serve, start, until};

const LONGER: &str = "records of this topic are kept for longer";
const UNKNOWN: &str = "could not check whether records are kept";
const HOUR: &str = "3600000";

/// A stack that keeps entries for a day.
fn with_day_retention()
-> impl Service<Record, Response: Send, Error = BoxError, Future: Send> + Clone + Send {
    let config = IdempotencyConfig::new("orders").with_retention(Duration::from_secs(86_400));
    let layer = IdempotencyLayer::new(MemoryStore::new(), config, key::coordinates()).unwrap();
    ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(async |_: Request| Ok::<_, BoxError>(()))
}

#[tokio::test(flavor = "current_thread")]
async fn topic_retention_above_entry_retention_is_logged() {
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

    let (log, guard) = CapturedLog::start();
    let serving = start(consumer().serve(with_day_retention()));
    let logged = || log.lines("WARN", LONGER);
    until("three topics are reported", || logged().len() >= 3).await;
    serving.stop().await.unwrap();
    for (topic, records) in [("week", "7 d"), ("ever", "forever"), ("compacted", "forever")] {
        let logged = logged();
        let line = logged.iter().find(|line| line.contains(&format!("topic=\"{topic}\"")));
        let line = line.unwrap_or_else(|| panic!("{topic} is not in {logged:?}"));
        for part in [&format!("records={records}"), "entries=1 d", "with_retention", "retention.ms"]
        {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    assert_eq!(logged().len(), 3, "{}", log.text());
    assert!(log.lines("INFO", UNKNOWN).is_empty(), "{}", log.text());
    drop(guard);
    tokio::task::spawn_blocking(move || drop(kafka)).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn retention_check_without_an_answer_is_logged() {
    let (log, _guard) = CapturedLog::start();
    // The mock cluster does not answer the request.
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.producer().produce(Message::to("orders").partition(0)).unwrap();
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), with_day_retention());
    until("the event is logged", || !log.lines("INFO", UNKNOWN).is_empty()).await;
    assert!(serving.handle().health().ready.is_ok());
    serving.stop().await.unwrap();
    assert!(log.lines("WARN", LONGER).is_empty(), "{}", log.text());
}

#[tokio::test(flavor = "current_thread")]
async fn drain_timeout_shortened_by_a_revoke_is_logged_at_startup() {
    for (poll_interval, logged) in [("30000", 0), ("10000", 1)] {
        let (log, _guard) = CapturedLog::start();
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("orders", 1).unwrap();
        let mut config = kafka.consumer_config("g");
        config.set("max.poll.interval.ms", poll_interval).set("session.timeout.ms", "6000");
        let serving = serve(
            consumer(config, "orders").with_drain_timeout(Duration::from_secs(15)),
            with_day_retention(),
        );
        let handle = serving.handle();
        until("the consumer is ready", || handle.health().ready.is_ok()).await;
        serving.stop().await.unwrap();
        let lines = log.lines("WARN", "less time to finish");
        assert_eq!(lines.len(), logged, "{lines:?}");
        let parts = ["drain_timeout=15s", "at_a_revoke=5s", "`max.poll.interval.ms`"];
        assert!(lines.iter().all(|line| parts.iter().all(|part| line.contains(part))), "{lines:?}");
    }
}
