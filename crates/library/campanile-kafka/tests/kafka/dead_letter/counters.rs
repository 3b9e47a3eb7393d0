//! Which counter each possible outcome of a record increments.

use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{Consumer, DeadLetter, FloodLimit, Paused, RetryTopics};
use campanile_test::MockKafka;
use tower::{Service, service_fn};

use super::{DEAD, produce};
use crate::support::{consumer, serve, until_committed, within};

const LATER: &str = "orders.later";

fn kafka(payloads: &[&str]) -> MockKafka {
    let kafka = super::kafka(payloads);
    kafka.create_topic(LATER, 1).unwrap();
    kafka
}

/// Does what the payload says.
fn service() -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send {
    service_fn(async |record: Record| match &record.payload().unwrap()[..] {
        b"dies" => Err(error::permanent("no such account").into()),
        b"skip" => Err(error::skip("of no interest").into()),
        b"later" => Err("busy".into()),
        b"hangs" => std::future::pending().await,
        _ => Ok(()),
    })
}

/// Creates a consumer with a flood limit, and with a retry topic of copies that do not become due.
fn guarded(kafka: &MockKafka, guard: FloodLimit) -> Consumer {
    consumer(kafka.consumer_config("g"), "orders")
        .on_give_up(DeadLetter::topic(DEAD).with_flood_limit(guard))
        .with_retry_topics(RetryTopics::new().then(LATER, Duration::from_secs(3600)))
        .with_drain_timeout(Duration::from_millis(50))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_records_count_as_finished_for_the_flood_guard() {
    let kafka = kafka(&["dies", "skip", "dies", "skip", "dies"]);
    let serving = serve(guarded(&kafka, FloodLimit::new(1, 2)), service());
    until_committed(&kafka.consumer_config("g"), "orders", &[5]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, summary.skipped), (3, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_records_do_not_count_for_the_flood_guard() {
    let kafka = kafka(&["dies", "later", "later", "dies"]);
    let serving = serve(guarded(&kafka, FloodLimit::new(1, 2)), service());
    let why = within("the consumer pauses", serving.handle().wait_paused()).await.unwrap();
    assert!(matches!(why, Paused::Flood { limit: 1, window: 2, .. }), "{why}");
    until_committed(&kafka.consumer_config("g"), "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, summary.deferred), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_received_record_is_counted_once() {
    let kafka = kafka(&["good", "dies", "skip", "later", "good", "hangs"]);
    let serving = serve(guarded(&kafka, FloodLimit::disabled()), service());
    until_committed(&kafka.consumer_config("g"), "orders", &[5]).await;
    let others = (0..3).map(|_| "good");
    produce(&kafka, &others.collect::<Vec<_>>());
    let summary = serving.stop().await.unwrap();
    let counts = [summary.processed, summary.dead_lettered, summary.skipped, summary.deferred];
    assert_eq!(counts, [2, 1, 1, 1]);
    assert!(summary.unfinished >= 1 && summary.revoked == 0, "{summary:?}");
    assert_eq!(summary.received, counts.iter().sum::<u64>() + summary.unfinished);
    assert_eq!(summary.retried, 1);
    assert_eq!(super::letters_in(&kafka.consumer_config("g"), DEAD).len(), 1);
}
