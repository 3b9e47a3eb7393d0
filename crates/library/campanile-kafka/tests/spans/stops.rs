//! The events about records that stop the consumer or a partition, and about skipped ones.

use campanile_core::{BoxError, DecodeLayer, Record, Request, error, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
use campanile_kafka::{Consumer, OnGiveUp};
use campanile_test::MockKafka;
use tower::{Service, ServiceBuilder, service_fn};

use crate::CapturedLog;
use crate::support::{consumer, mock, serve, until, until_committed};

fn contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// A cluster with records of which the second one is refused.
fn kafka() -> (MockKafka, Consumer) {
    let kafka = mock("orders", 1, 3);
    let mut config = kafka.consumer_config("g");
    // A member that stalls would receive its records again.
    config.set("session.timeout.ms", "30000");
    (kafka, consumer(config, "orders"))
}

/// A service behind the layer that refuses the second record.
fn refusing()
-> impl Service<Record, Response: 'static, Error = BoxError, Future: Send> + Clone + Send + 'static
{
    let config = IdempotencyConfig::new("billing.orders");
    let layer = IdempotencyLayer::new(MemoryStore::new(), config, key::coordinates()).unwrap();
    ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        async |request: Request| match request.record().offset() {
            1 => Err(BoxError::from(error::permanent("card expired"))),
            _ => Ok(()),
        },
    )
}

/// The three ways out.
const WAYS_OUT: [&str; 4] =
    ["fix the handler, then restart", "`Consumer::skip_at`", "`OnGiveUp::Skip`", "`DeadLetter`"];

#[tokio::test(flavor = "current_thread")]
async fn record_that_stops_the_consumer_is_logged_once() {
    let (log, _guard) = CapturedLog::start();
    let (_kafka, consumer) = kafka();
    let stopped = serve(consumer, refusing()).ended().await.unwrap_err();
    let logged = log.lines("ERROR", "");
    let [line] = &logged[..] else { panic!("{}", log.text()) };
    contains(line, &["consumer stopped at a record", "record=orders/0@1", "attempts=1"]);
    contains(
        line,
        &[r#"namespace="billing.orders""#, r#"error="attempt 1 of 8 failed: permanent"#],
    );
    contains(line, &["card expired"]);
    contains(line, &WAYS_OUT);
    let text = format!("{stopped:?}");
    contains(&text, &["stopped at orders/0@1; its offset is not committed", "card expired"]);
    contains(&text, &WAYS_OUT);
}

#[tokio::test(flavor = "current_thread")]
async fn record_without_a_lock_that_stops_the_consumer_is_logged() {
    let (log, _guard) = CapturedLog::start();
    let (_kafka, consumer) = kafka();
    let service = service_fn(async |_: Record| Err::<(), _>(error::permanent("no json")));
    serve(consumer, service).ended().await.unwrap_err();
    let logged = log.lines("ERROR", "");
    let [line] = &logged[..] else { panic!("{}", log.text()) };
    contains(line, &["record=orders/0@0", "no attempt can succeed", "no json"]);
    assert!(!line.contains("attempts=") && !line.contains("namespace="), "{line}");
}

#[tokio::test(flavor = "current_thread")]
async fn record_that_stops_its_partition_is_logged_once() {
    let (log, _guard) = CapturedLog::start();
    let (_kafka, consumer) = kafka();
    let serving = serve(consumer.on_give_up(OnGiveUp::StopPartition), refusing());
    let handle = serving.handle();
    let is_stopped = || handle.status().partitions.iter().any(|p| p.stopped.is_some());
    until("the partition is stopped", is_stopped).await;
    serving.stop().await.unwrap();
    let logged = log.lines("ERROR", "");
    let [line] = &logged[..] else { panic!("{}", log.text()) };
    contains(line, &["partition stopped at a record", "record=orders/0@1", "attempts=1"]);
    contains(line, &WAYS_OUT);
}

#[tokio::test(flavor = "current_thread")]
async fn skipped_coordinates_are_logged_once() {
    let (log, _guard) = CapturedLog::start();
    let (kafka, consumer) = kafka();
    let serving = serve(consumer.skip_at("orders/0@1".parse().unwrap()), refusing());
    until_committed(&kafka.consumer_config("g"), "orders", &[3]).await;
    serving.stop().await.unwrap();
    let logged = log.lines("WARN", "record skipped without processing");
    let [line] = &logged[..] else { panic!("{}", log.text()) };
    contains(line, &["record=orders/0@1", "`Consumer::skip_at`"]);
    assert_eq!(log.lines("ERROR", ""), [""; 0]);
}
