//! Spans and events of the driver. A separate binary, because tracing caches for the whole process
//! whether a callsite is enabled, and other tests would reach the callsites first, without a
//! subscriber.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[allow(dead_code, reason = "shared with the other binary, which needs all of it")]
#[path = "../kafka/support.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{DeadLetter, FloodLimit};
use campanile_test::{Message, MockKafka};
use rdkafka::types::RDKafkaRespErr;
use tower::service_fn;
use tracing_subscriber::fmt::format::FmtSpan;

use support::{consumer, serve, until, until_committed, within};

mod captured_log;
mod events;
mod seeks;
mod stalls;
mod stops;

pub(crate) use captured_log::CapturedLog;

// A single-threaded runtime, because only the test's own thread has the subscriber.
#[tokio::test(flavor = "current_thread")]
async fn attempt_span_names_the_record_without_key_or_payload() {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .with_span_events(FmtSpan::NEW)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let secret = Message::to("orders").partition(0).key("s3cret-key").payload("s3cret-payload");
    kafka.producer().produce(secret.header("h", "s3cret-header")).unwrap();
    let config = kafka.consumer_config("billing");
    // The default level, DEBUG, is below that of the subscriber.
    let other = kafka.consumer_config("accounting");
    let succeeds = service_fn(|_: Record| async { Ok::<_, BoxError>(()) });
    let serving = serve(consumer(other.clone(), "orders"), succeeds);
    until_committed(&other, "orders", &[1]).await;
    serving.stop().await.unwrap();
    assert!(!log.text().contains("record{"), "{}", log.text());

    let first = Arc::new(AtomicBool::new(true));
    let service = service_fn(move |_: Record| {
        let fails = first.swap(false, Ordering::SeqCst);
        async move {
            match fails {
                true => Err(BoxError::from(error::retry_after("no route", Duration::ZERO))),
                false => Ok(()),
            }
        }
    });
    let spanned = consumer(config.clone(), "orders").with_span_level(tracing::Level::INFO);
    let serving = serve(spanned, service);
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();

    let text = log.text();
    let spans: Vec<&str> = text.lines().filter(|line| line.contains("record{")).collect();
    let begun = spans.iter().filter(|line| line.ends_with("new")).count();
    assert_eq!(begun, 2, "{text}");
    for field in [
        "otel.name=process orders",
        r#"otel.kind="consumer""#,
        r#"messaging.system="kafka""#,
        r#"messaging.operation.name="process""#,
        r#"messaging.destination.name="orders""#,
        "messaging.destination.partition.id=0",
        "messaging.kafka.offset=0",
        r#"messaging.consumer.group.name="billing""#,
    ] {
        assert!(spans[0].contains(field), "{field} is not in {}", spans[0]);
    }
    let logged = |line: &&str| line.contains("WARN") && line.contains("orders/0@0");
    let retried = text.lines().find(logged).unwrap_or_else(|| panic!("no event in {text}"));
    assert!(retried.contains("no route") && retried.contains("after=0ns"), "{retried}");
    assert!(!retried.contains("origin") && !retried.contains("retry_topic"), "{retried}");
    assert!(!text.contains("s3cret"), "{text}");
}

#[tokio::test(flavor = "current_thread")]
async fn unpublished_letter_and_flood_are_logged_with_help() {
    let (log, _guard) = CapturedLog::start();
    let errors = |about: &str| log.lines("ERROR", about);

    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.create_topic("orders.dead", 1).unwrap();
    let config = kafka.consumer_config("billing");
    let letters_to = DeadLetter::topic("orders.dead")
        .with_timeout(Duration::from_secs(1))
        .with_flood_limit(FloodLimit::new(1, 10));
    let service = service_fn(async |record: Record| match record.offset() {
        0 => Ok(()),
        _ => Err(BoxError::from(error::permanent("card expired"))),
    });
    let produce = |_| {
        kafka.producer().produce(Message::to("orders").partition(0).payload("s3cret")).unwrap();
    };
    produce(0);
    let serving = serve(consumer(config.clone(), "orders").on_give_up(letters_to), service);
    until_committed(&config, "orders", &[1]).await;
    let unknown = |error| kafka.cluster().topic_error("orders.dead", error).unwrap();
    unknown(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    (1..3).for_each(produce);
    until("the event is logged", || !errors("failed to publish the dead letter").is_empty()).await;
    let logged = &errors("failed to publish the dead letter")[0];
    for part in ["orders/0@1", r#"topic="orders.dead""#, "error=", "create the topic"] {
        assert!(logged.contains(part), "{part} is not in {logged}");
    }

    unknown(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    let why = within("the consumer pauses", serving.handle().wait_paused()).await.unwrap();
    assert!(why.to_string().contains("more than 1 dead letters among the last 10"), "{why}");
    until_committed(&config, "orders", &[2]).await;
    serving.stop().await.unwrap();
    let logged = errors("paused");
    assert_eq!(logged.len(), 1, "{}", log.text());
    for part in ["orders/0@2", "card expired", "limit=1", "window=10", "resume through the handle"]
    {
        assert!(logged[0].contains(part), "{part} is not in {}", logged[0]);
    }
    assert!(!log.text().contains("s3cret"), "{}", log.text());
}

#[tokio::test(flavor = "current_thread")]
async fn drain_timeout_shortened_by_a_revoke_is_logged_at_startup() {
    for (poll_interval, logged) in [("30000", 0), ("10000", 1)] {
        let (log, _guard) = CapturedLog::start();
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("orders", 1).unwrap();
        let mut config = kafka.consumer_config("g");
        config.set("max.poll.interval.ms", poll_interval).set("session.timeout.ms", "6000");
        let consumer = consumer(config, "orders").with_drain_timeout(Duration::from_secs(15));
        let serving = serve(consumer, service_fn(async |_: Record| Ok::<_, BoxError>(())));
        let handle = serving.handle();
        until("the consumer is ready", || handle.health().ready.is_ok()).await;
        serving.stop().await.unwrap();
        let lines = log.lines("WARN", "less time to finish");
        assert_eq!(lines.len(), logged, "{lines:?}");
        let parts = ["drain_timeout=15s", "at_a_revoke=5s", "`max.poll.interval.ms`"];
        assert!(lines.iter().all(|line| parts.iter().all(|part| line.contains(part))), "{lines:?}");
    }
}
