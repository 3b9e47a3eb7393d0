//! A store that is down: no attempts are counted, no records are skipped, and the consumer recovers
//! on its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, error, key};
use campanile_idempotency::{
    IdempotencyConfig, IdempotencyError, IdempotencyLayer, MemoryStore, StoreError,
};
use campanile_test::faults::{Fault, FaultyStore};
use tower::{ServiceBuilder, service_fn};

use crate::support::{Log, committed, consumer, mock, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_store_stops_dispatch_until_a_probe_succeeds() {
    let kafka = mock("orders", 4, 20);
    let config = kafka.consumer_config("g");
    let (down, log) = (Arc::new(AtomicBool::new(true)), Log::default());
    let (store_calls, in_flight, most) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_down, seen, counts) =
        (down.clone(), log.clone(), (store_calls.clone(), in_flight.clone(), most.clone()));
    let service = service_fn(move |record: Record| {
        let down = is_down.load(Ordering::SeqCst);
        let (seen, (store_calls, in_flight, most)) = (seen.clone(), counts.clone());
        async move {
            if !down {
                seen.push(&record);
                return Ok(());
            }
            // The first record of each partition may have been in flight when the store went down.
            if store_calls.fetch_add(1, Ordering::SeqCst) >= 4 {
                most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
            let error = StoreError::unavailable("connection refused");
            Err(BoxError::from(IdempotencyError::Store(error)))
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until("several probes are sent", || store_calls.load(Ordering::SeqCst) >= 9).await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "one probe at a time");
    assert_eq!(log.len(), 0);
    down.store(false, Ordering::SeqCst);
    until_committed(&config, "orders", &[20; 4]).await;
    let summary = serving.stop().await.unwrap();
    for partition in 0..4 {
        assert_eq!(log.of(partition), (0..20).collect::<Vec<_>>());
    }
    assert_eq!((summary.processed, summary.retried, summary.skipped), (80, 0, 0));
    assert_eq!(summary.inconclusive, store_calls.load(Ordering::SeqCst) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_back_off_when_a_record_skips_the_store() {
    let kafka = mock("orders", 3, 5);
    let store_calls = Arc::new(AtomicUsize::new(0));
    let calls = store_calls.clone();
    let service = service_fn(move |record: Record| {
        if record.partition() > 0 {
            calls.fetch_add(1, Ordering::SeqCst);
        }
        async move {
            match record.partition() {
                // Skipped without calling the store, whether or not the store is up.
                0 => Err::<(), _>(BoxError::from(error::skip("of no interest"))),
                _ => {
                    let error = StoreError::unavailable("connection refused");
                    Err(IdempotencyError::Store(error).into())
                }
            }
        }
    });
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), service);
    until("the first probe is sent", || store_calls.load(Ordering::SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let summary = serving.stop().await.unwrap();
    // Without a backoff, there would be thousands of probes.
    let count = store_calls.load(Ordering::SeqCst);
    assert!(count < 50, "{count} probes");
    assert_eq!(summary.processed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_entry_blocks_only_its_partition() {
    let kafka = mock("orders", 2, 20);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        let corrupt = record.partition() == 0 && record.offset() == 3;
        if !corrupt {
            seen.push(&record);
        }
        async move {
            match corrupt {
                true => Err(BoxError::from(IdempotencyError::Store(StoreError::unreadable("?")))),
                false => Ok(()),
            }
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[3, 20]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(log.of(0), [0, 1, 2]);
    assert!(summary.inconclusive >= 1 && summary.skipped == 0, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offset_is_held_until_the_completion_is_written() {
    for fault in [Fault::Hang, Fault::Refuse] {
        let kafka = mock("orders", 1, 1);
        let config = kafka.consumer_config("g");
        let store = FaultyStore::new(MemoryStore::new());
        store.inject_always_of("complete", fault);
        // A call that hangs is given up, and repeated, after a sixth of this.
        let idempotency = IdempotencyConfig::new("orders").with_lock_ttl(Duration::from_secs(9));
        let layer = IdempotencyLayer::new(store.clone(), idempotency, key::coordinates()).unwrap();
        let log = Log::default();
        let seen = log.clone();
        let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
            move |request: Request| {
                seen.push(request.record());
                async { Ok::<_, BoxError>(()) }
            },
        );
        let serving = serve(consumer(config.clone(), "orders"), service);
        // The repetitions take longer than a commit interval.
        until("the completion is repeated", || store.count("complete") >= 4).await;
        assert_eq!(committed(&config, "orders", 1), [None], "{fault:?}");
        store.heal();
        until_committed(&config, "orders", &[1]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, log.len(), store.count("acquire")), (1, 1, 1), "{fault:?}");
    }
}
