//! A dependency that fails every record does not move the whole topic to the dead-letter topic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, error, key};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore,
};
use campanile_kafka::{Consumer, DeadLetter, FloodLimit, Paused};
use campanile_test::faults::FaultyStore;
use campanile_test::{Message, MockKafka};
use tokio::sync::Semaphore;
use tower::{Service, ServiceBuilder, service_fn};

use super::{DEAD, kafka, letters, produce, set_unknown, short_timeout, single_attempt};
use crate::give_up::{FAILS, GOOD};
use crate::real::logging;
use crate::support::{
    Log, committed, consumer, fill, gated, mock, serve, start, until, until_committed, within,
};

/// Fails permanently while `broken` is set.
fn service(
    broken: &Arc<AtomicBool>,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let broken = broken.clone();
    service_fn(move |_: Record| {
        let fails = broken.load(Ordering::SeqCst);
        async move { if fails { Err(error::permanent("no route").into()) } else { Ok(()) } }
    })
}

fn guarded(kafka: &MockKafka, guard: FloodLimit) -> Consumer {
    let letters_to = DeadLetter::topic(DEAD).with_flood_limit(guard);
    consumer(kafka.consumer_config("g"), "orders").on_give_up(letters_to)
}

fn broken_handler(partitions: i32, records: usize) -> (MockKafka, Arc<AtomicBool>) {
    let kafka = mock("orders", partitions, records);
    kafka.create_topic(DEAD, 1).unwrap();
    (kafka, Arc::new(AtomicBool::new(true)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_handler_pauses_the_consumer_until_resume() {
    let (kafka, broken) = broken_handler(4, 1250);
    let config = kafka.consumer_config("g");
    let serving = serve(guarded(&kafka, FloodLimit::default()), service(&broken));
    let handle = serving.handle();
    let why = within("the consumer pauses", handle.wait_paused()).await.unwrap();
    assert!(matches!(why, Paused::Flood { limit: 50, window: 100, .. }), "{why}");
    until("publications in flight end", || letters(&config).len() == 50).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(letters(&config).len(), 50);
    let sum = |offsets: Vec<Option<i64>>| offsets.into_iter().flatten().sum::<i64>();
    until("50 are committed", || sum(committed(&config, "orders", 4)) == 50).await;

    // If the consumer is resumed while the handler is still broken, the guard counts from zero.
    handle.resume();
    within("the consumer pauses again", handle.wait_paused()).await.unwrap();
    until("publications in flight end", || letters(&config).len() == 100).await;

    broken.store(false, Ordering::SeqCst);
    handle.resume();
    assert_eq!(handle.paused(), None);
    until_committed(&config, "orders", &[1250; 4]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (4900, 100));
    assert_eq!(letters(&config).len(), 100);
    assert_eq!(within("the waiter wakes", handle.wait_paused()).await, None, "serving ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_consumer_stays_in_the_group_and_can_stop() {
    let (kafka, broken) = broken_handler(1, 10);
    let config = kafka.consumer_config("g");
    let serving = serve(guarded(&kafka, FloodLimit::new(2, 10)), service(&broken));
    let handle = serving.handle();
    within("the consumer pauses", handle.wait_paused()).await.unwrap();
    until_committed(&config, "orders", &[2]).await;
    // Longer than the session of a member that has left.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, summary.unfinished, summary.revoked), (2, 8, 0));
    assert_eq!(committed(&config, "orders", 1), [Some(2)]);

    // After a restart, the guard counts from zero.
    broken.store(false, Ordering::SeqCst);
    let serving = serve(guarded(&kafka, FloodLimit::new(2, 10)), service(&broken));
    until_committed(&config, "orders", &[10]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_over_the_flood_limit_keeps_its_place_without_lock() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.create_topic(DEAD, 1).unwrap();
    for n in 0..4 {
        let order = format!(r#"{{"id":"order-{n}","fails":true}}"#);
        kafka.producer().produce(Message::to("orders").partition(0).payload(order)).unwrap();
    }
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let serving = serve(
        guarded(&kafka, FloodLimit::new(2, 10)),
        single_attempt(&keeper, Duration::from_secs(3600)),
    );
    let handle = serving.handle();
    within("the consumer pauses", handle.wait_paused()).await.unwrap();
    until("the lock is released", || store.count("release") == 1).await;
    let counts = ["give_up", "acquire", "fail"].map(|operation| store.count(operation));
    assert_eq!(counts, [2, 3, 0]);
    until_committed(&config, "orders", &[2]).await;

    handle.resume();
    until_committed(&config, "orders", &[4]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 4);
    assert_eq!(letters(&config).len(), 4);
}

/// A handler that fails while `broken` is set, with errors that each cost an attempt. It records
/// the attempts, and needs a permit to finish its last attempt.
fn attempts(
    store: &FaultyStore<MemoryStore>,
    broken: &Arc<AtomicBool>,
    max_attempts: u32,
    permits: &Arc<Semaphore>,
    seen: &Arc<Mutex<Vec<u32>>>,
) -> impl Service<Record, Error = BoxError, Future: Send> + Clone + Send + use<> {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    let layer = IdempotencyLayer::new(
        store.clone(),
        IdempotencyConfig::new("orders").with_max_attempts(max_attempts).with_backoff(backoff),
        key::coordinates(),
    )
    .unwrap();
    let (broken, permits, seen) = (broken.clone(), permits.clone(), seen.clone());
    ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            let attempt = request.lock().unwrap().attempt();
            seen.lock().unwrap().push(attempt);
            let (broken, permits) = (broken.clone(), permits.clone());
            async move {
                if attempt == max_attempts {
                    permits.acquire().await?.forget();
                }
                match broken.load(Ordering::SeqCst) {
                    true => Err(BoxError::from("no route")),
                    false => Ok(()),
                }
            }
        },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_held_by_a_flood_are_retried_after_resume() {
    for max_attempts in [1, 2] {
        // All four records are in flight when the first of them exceeds the limit.
        let (kafka, broken) = broken_handler(4, 1);
        let config = kafka.consumer_config("g");
        let (permits, seen) = (Arc::new(Semaphore::new(0)), Arc::default());
        let store = FaultyStore::new(MemoryStore::new());
        let service = attempts(&store, &broken, max_attempts, &permits, &seen);
        let serving = serve(guarded(&kafka, FloodLimit::new(0, 10)), service);
        let handle = serving.handle();
        let last = || seen.lock().unwrap().iter().filter(|of| **of == max_attempts).count();
        until("the last attempts of all records are in flight", || last() == 4).await;
        permits.add_permits(4);
        within("the consumer pauses", handle.wait_paused()).await.unwrap();
        until("all records are held", || store.count("release") == 4).await;

        broken.store(false, Ordering::SeqCst);
        permits.add_permits(4);
        handle.resume();
        until_committed(&config, "orders", &[1; 4]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, summary.dead_lettered), (4, 0));
        assert_eq!(last(), 8, "each record had its last attempt twice: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_fails_during_a_manual_pause_is_held() {
    let (kafka, broken) = broken_handler(1, 1);
    let config = kafka.consumer_config("g");
    let (permits, seen) = (Arc::new(Semaphore::new(0)), Arc::default());
    let store = FaultyStore::new(MemoryStore::new());
    let service = attempts(&store, &broken, 1, &permits, &seen);
    let serving = serve(guarded(&kafka, FloodLimit::disabled()), service);
    let handle = serving.handle();
    until("the record is in flight", || seen.lock().unwrap().len() == 1).await;
    handle.pause();
    permits.add_permits(1);
    until("the record is held", || store.count("release") == 1).await;
    broken.store(false, Ordering::SeqCst);
    permits.add_permits(1);
    handle.resume();
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 0));
    assert_eq!(*seen.lock().unwrap(), [1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handle_pauses_and_resumes_while_in_flight_finishes() {
    let (kafka, broken) = broken_handler(1, 0);
    broken.store(false, Ordering::SeqCst);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let gate = Arc::new(Semaphore::new(0));
    let service = gated(&log, &gate);
    let serving = serve(guarded(&kafka, FloodLimit::default()), service);
    let handle = serving.handle();
    fill(&kafka, "orders", 1, 3);
    log.reaches(1).await;
    handle.pause();
    assert_eq!(handle.paused(), Some(Paused::ByHandle));
    gate.add_permits(3);
    until_committed(&config, "orders", &[1]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(log.len(), 1, "no further record is started");
    handle.resume();
    until_committed(&config, "orders", &[3]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_consumer_hands_over_its_partitions() {
    let (kafka, broken) = broken_handler(2, 10);
    let config = kafka.consumer_config("g");
    let one = serve(guarded(&kafka, FloodLimit::new(0, 1)), service(&broken));
    let handle = one.handle();
    within("the consumer pauses", handle.wait_paused()).await.unwrap();
    let fixed = Arc::new(AtomicBool::new(false));
    let other = serve(guarded(&kafka, FloodLimit::default()), service(&fixed));
    until("the other consumer has processed its partition", || {
        committed(&config, "orders", 2).contains(&Some(10))
    })
    .await;
    assert!(handle.paused().is_some());
    one.stop().await.unwrap();
    until_committed(&config, "orders", &[10, 10]).await;
    other.stop().await.unwrap();
    assert_eq!(letters(&config).len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_letter_counts_once_for_the_flood_guard() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let letters_to = short_timeout().with_flood_limit(FloodLimit::new(1, 10));
    let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
    let serving = serve(consumer, single_attempt(&keeper, Duration::from_secs(30)));
    let handle = serving.handle();
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &[FAILS]);
    until("three budgets are used up", || store.count("fail") >= 3).await;
    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[2]).await;
    assert_eq!(handle.paused(), None);
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_paused_before_serving_starts_at_resume() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serve = consumer(config.clone(), "orders").serve(logging(&log));
    let handle = serve.handle();
    handle.pause();
    let serving = start(serve);
    // Longer than other consumers need for their first record.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((log.len(), handle.paused()), (0, Some(Paused::ByHandle)));
    handle.resume();
    until_committed(&config, "orders", &[3]).await;
    assert_eq!(serving.stop().await.unwrap().processed, 3);
}
