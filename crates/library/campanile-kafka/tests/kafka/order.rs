//! Which records are processed one after the other, and how far other records may run ahead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{BoxError, Record, error};
use campanile_idempotency::{IdempotencyError, StoreError};
use campanile_kafka::{Consumer, ProcessingOrder};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use tokio::sync::{Barrier, Semaphore};
use tower::{Service, service_fn};

use crate::support::{Log, committed, consumer, mock, serve, until, until_committed};

/// Starts a cluster with one partition that has records with these keys.
fn keyed<'a>(keys: impl IntoIterator<Item = &'a str>) -> MockKafka {
    let kafka = mock("orders", 1, 0);
    let message = |key: &str| Message::to("orders").partition(0).key(key.to_owned()).payload("p");
    kafka.producer().produce_all(keys.into_iter().map(message)).unwrap();
    kafka
}

fn ordered(config: &ClientConfig, order: ProcessingOrder) -> Consumer {
    consumer(config.clone(), "orders").with_order(order)
}

fn key_of(record: &Record) -> Option<Bytes> {
    record.key().cloned()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Begin(i64),
    End(i64),
}

/// The handler's steps for each partition and key.
type History = Arc<Mutex<HashMap<(i32, Option<Bytes>), Vec<Step>>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_key_are_processed_in_order() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let kafka = mock("orders", 3, 0);
    let messages = (0..1500).map(|_| {
        let message = Message::to("orders").partition(random.i32(0..3)).payload("p");
        match random.u8(0..12) {
            0 => message,
            key => message.key(format!("k{key}")),
        }
    });
    kafka.producer().produce_all(messages.collect::<Vec<_>>()).unwrap();
    let config = kafka.consumer_config("g");
    let history = History::default();
    let (steps, log) = (history.clone(), Log::default());
    let (seen, random) = (log.clone(), Arc::new(Mutex::new(random)));
    let service = service_fn(move |record: Record| {
        let (steps, seen, random) = (steps.clone(), seen.clone(), random.clone());
        async move {
            let step = |step| {
                let queue = (record.partition(), key_of(&record));
                steps.lock().unwrap().entry(queue).or_default().push(step);
            };
            step(Step::Begin(record.offset()));
            let (micros, fails) = {
                let mut random = random.lock().unwrap();
                (random.u64(0..2000), random.u8(0..50) == 0)
            };
            tokio::time::sleep(Duration::from_micros(micros)).await;
            step(Step::End(record.offset()));
            if fails {
                return Err(BoxError::from(error::retry_after("again", Duration::from_millis(3))));
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(ordered(&config, ProcessingOrder::by_key()), service);
    log.reaches(1500).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.processed, 1500);
    let history = history.lock().unwrap();
    assert_eq!(history.len(), 36);
    for steps in history.values() {
        let mut last = -1;
        for pair in steps.chunks(2) {
            let &[Step::Begin(begun), Step::End(ended)] = pair else { panic!("{steps:?}") };
            assert!(begun == ended && begun >= last, "{begun} to {ended} after {last}: {steps:?}");
            last = begun;
        }
    }
}

/// A service with calls that finish only when this many of them are in flight together.
fn concurrently(
    many: usize,
    log: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let (log, all) = (log.clone(), Arc::new(Barrier::new(many)));
    service_fn(move |record: Record| {
        let (log, all) = (log.clone(), all.clone());
        async move {
            all.wait().await;
            log.push(&record);
            Ok(())
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_one_partition_are_processed_concurrently() {
    for order in
        [ProcessingOrder::by_key(), ProcessingOrder::by(key_of), ProcessingOrder::unordered()]
    {
        let kafka = keyed(["a", "b", "c", "d"]);
        let log = Log::default();
        let serving = serve(ordered(&kafka.consumer_config("g"), order), concurrently(4, &log));
        log.reaches(4).await;
        serving.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unordered_records_of_a_key_are_processed_concurrently() {
    let kafka = keyed(["a"; 8]);
    let log = Log::default();
    let consumer = ordered(&kafka.consumer_config("g"), ProcessingOrder::unordered());
    let serving = serve(consumer, concurrently(8, &log));
    log.reaches(8).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_key_lets_others_run_ahead_up_to_the_budget() {
    const MAX_AHEAD: usize = 50;
    let keys = (0..200).map(|n| ["slow", "a", "b", "c"][if n == 0 { 0 } else { n % 3 + 1 }]);
    for order in [ProcessingOrder::by_key(), ProcessingOrder::unordered()] {
        let kafka = keyed(keys.clone());
        let config = kafka.consumer_config("g");
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
        let (seen, opens) = (log.clone(), gate.clone());
        let service = service_fn(move |record: Record| {
            let (seen, opens) = (seen.clone(), opens.clone());
            async move {
                if record.offset() == 0 {
                    opens.acquire().await?.forget();
                }
                seen.push(&record);
                Ok::<_, BoxError>(())
            }
        });
        let consumer = ordered(&config, order).with_budget(MAX_AHEAD, 64 << 20);
        let serving = serve(consumer, service);
        log.reaches(MAX_AHEAD - 1).await;
        // A longer time only makes the test stricter.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut first = log.of(0);
        first.sort_unstable();
        assert_eq!(first, (1..MAX_AHEAD as i64).collect::<Vec<_>>());
        assert_eq!(committed(&config, "orders", 1), [None]);
        gate.add_permits(1);
        until_committed(&config, "orders", &[200]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, log.len()), (200, 200));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_partition_uses_half_of_the_in_flight_limit() {
    for order in [ProcessingOrder::by_key(), ProcessingOrder::unordered()] {
        let kafka = mock("orders", 2, 0);
        let message = |n: i32| Message::to("orders").partition(n % 2).key(format!("k{n}"));
        let messages = (0..200).map(|n| message(n).payload("p"));
        kafka.producer().produce_all(messages.collect::<Vec<_>>()).unwrap();
        let config = kafka.consumer_config("g");
        let (begun, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
        let (seen, opens) = (begun.clone(), gate.clone());
        let service = service_fn(move |record: Record| {
            seen.push(&record);
            let opens = opens.clone();
            async move {
                if record.partition() == 0 {
                    let _permit = opens.acquire().await?;
                }
                Ok::<_, BoxError>(())
            }
        });
        let serving = serve(ordered(&config, order).with_max_in_flight(8), service);
        let all = || committed(&config, "orders", 2)[1] == Some(100);
        until("the other partition is committed", all).await;
        until("the hanging partition has its half", || begun.of(0).len() >= 4).await;
        assert_eq!(begun.of(0).len(), 4);
        gate.add_permits(100);
        until_committed(&config, "orders", &[100; 2]).await;
        serving.stop().await.unwrap();
        assert_eq!(begun.len(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_waiting_for_a_retry_blocks_only_its_key() {
    let kafka = keyed(["a", "b", "a", "b", "a", "b"]);
    let config = kafka.consumer_config("g");
    let (log, failed, fixed) = (Log::default(), Log::default(), Arc::new(Semaphore::new(0)));
    let (seen, failing, is_fixed) = (log.clone(), failed.clone(), fixed.clone());
    let service = service_fn(move |record: Record| {
        let fails = record.offset() == 0 && is_fixed.available_permits() == 0;
        let log = if fails { &failing } else { &seen };
        log.push(&record);
        async move {
            match fails {
                true => Err(BoxError::from(error::retry_after("no", Duration::from_millis(20)))),
                false => Ok(()),
            }
        }
    });
    let serving = serve(ordered(&config, ProcessingOrder::by_key()), service);
    log.reaches(3).await;
    assert_eq!(log.of(0), [1, 3, 5]);
    // These retries take twice as long as a commit interval.
    failed.reaches(failed.len() + 20).await;
    assert_eq!(committed(&config, "orders", 1), [None]);
    fixed.add_permits(1);
    until_committed(&config, "orders", &[6]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0)[3..], [0, 2, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_finished_behind_a_dropped_one_are_redelivered() {
    let kafka = keyed(["a", "b", "c", "d", "e", "f"]);
    let config = kafka.consumer_config("g");
    let service = service_fn(async |record: Record| {
        if record.offset() == 2 {
            std::future::pending::<()>().await;
        }
        Ok::<_, BoxError>(())
    });
    let consumer = ordered(&config, ProcessingOrder::by_key());
    let serving = serve(consumer.with_drain_timeout(Duration::from_millis(20)), service);
    let handle = serving.handle();
    until("the others are processed", || handle.status().summary.processed == 5).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.unfinished), (5, 1));
    assert_eq!(committed(&config, "orders", 1), [Some(2)]);
    let log = Log::default();
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        seen.push(&record);
        async { Ok::<_, BoxError>(()) }
    });
    let serving = serve(ordered(&config, ProcessingOrder::by_key()), service);
    until_committed(&config, "orders", &[6]).await;
    serving.stop().await.unwrap();
    let mut again = log.of(0);
    again.sort_unstable();
    assert_eq!(again, [2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_store_shard_blocks_only_its_keys() {
    // One case has many records of the unavailable part at the start, as after an outage that hit all
    // records in flight. The other case has a low rate.
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(100));
    for (first, pause, order) in [
        (24, short, ProcessingOrder::by_key()),
        (0, long, ProcessingOrder::by_key()),
        (24, short, ProcessingOrder::unordered()),
        (0, long, ProcessingOrder::unordered()),
    ] {
        let keys: Vec<String> = (0..120).map(|n| format!("k{n}")).collect();
        let kafka = keyed(keys.iter().map(String::as_str));
        let config = kafka.consumer_config("g");
        let (log, back) = (Log::default(), Arc::new(Semaphore::new(0)));
        let (seen, is_back) = (log.clone(), back.clone());
        let is_unavailable = move |offset: i64| offset < first || offset % 3 == 0;
        let service = service_fn(move |record: Record| {
            let unavailable = is_unavailable(record.offset()) && is_back.available_permits() == 0;
            if !unavailable {
                seen.push(&record);
            }
            async move {
                tokio::time::sleep(pause).await;
                if unavailable {
                    let error = StoreError::unavailable("connection refused");
                    return Err(BoxError::from(IdempotencyError::Store(error)));
                }
                Ok(())
            }
        });
        let serving = serve(ordered(&config, order).with_max_in_flight(16), service);
        log.reaches((0..120).filter(|offset| !is_unavailable(*offset)).count()).await;
        assert!(log.all().iter().all(|(_, offset)| !is_unavailable(*offset)));
        back.add_permits(1);
        until_committed(&config, "orders", &[120]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, summary.retried, log.len()), (120, 0, 120));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_store_shard_stops_each_partition_at_its_first_record() {
    let kafka = mock("orders", 2, 6);
    let config = kafka.consumer_config("g");
    let (log, refused, back) = (Log::default(), Log::default(), Arc::new(Semaphore::new(0)));
    let (seen, refuses, is_back) = (log.clone(), refused.clone(), back.clone());
    let service = service_fn(move |record: Record| {
        // One partition's second record, and the other's fourth.
        let is_of_shard = record.offset() == i64::from(1 + 2 * record.partition());
        let unavailable = is_of_shard && is_back.available_permits() == 0;
        let log = if unavailable { &refuses } else { &seen };
        log.push(&record);
        async move {
            if unavailable {
                let error = StoreError::unavailable("connection refused");
                return Err(BoxError::from(IdempotencyError::Store(error)));
            }
            Ok(())
        }
    });
    let serving = serve(ordered(&config, ProcessingOrder::by_partition()), service);
    until_committed(&config, "orders", &[1, 3]).await;
    until("both records have asked again", || (0..2).all(|p| refused.of(p).len() >= 2)).await;
    assert_eq!(log.of(0), [0]);
    assert_eq!(log.of(1), [0, 1, 2]);
    assert_eq!(committed(&config, "orders", 2), [Some(1), Some(3)]);
    back.add_permits(1);
    until_committed(&config, "orders", &[6; 2]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.retried, log.len()), (12, 0, 12));
}
