//! Shutdown through a handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, LockHandle, Record, Request, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
use campanile_kafka::Consumer;
use campanile_test::faults::{Fault, FaultyStore};
use tower::{Service, ServiceBuilder, service_fn};

use crate::support::{Log, committed, consumer, mock, serve, until_committed, until_held, within};

/// A service that completes even records and hangs for odd ones.
fn hanging_on_odd_offsets(
    begun: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let begun = begun.clone();
    service_fn(move |record: Record| {
        begun.push(&record);
        async move {
            if record.offset() % 2 == 1 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    })
}

/// Sets a drain timeout that exceeds the time limit of the tests.
fn with_long_drain(consumer: Consumer) -> Consumer {
    consumer.with_drain_timeout(Duration::from_secs(3600))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_by_any_handle_is_graceful_and_idempotent() {
    let kafka = mock("orders", 3, 1000);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        seen.push(&record);
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(with_long_drain(consumer(config.clone(), "orders")), service);
    let handle = serving.handle();
    log.reaches(3).await;
    handle.clone().shutdown();
    handle.shutdown();
    let summary = serving.ended().await.unwrap();
    handle.shutdown();
    assert_eq!(summary.processed, log.len() as u64, "records in flight completed: {summary:?}");
    assert!(summary.unfinished > 0, "{summary:?}");
    let marks: Vec<_> = (0..3).map(|p| Some(log.of(p).len() as i64)).collect();
    assert_eq!(committed(&config, "orders", 3), marks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_before_serving_starts_no_record() {
    let kafka = mock("orders", 1, 10);
    let log = Log::default();
    let serve = consumer(kafka.consumer_config("g"), "orders").serve(hanging_on_odd_offsets(&log));
    serve.handle().shutdown();
    let summary = within("serving ends", serve.into_future()).await.unwrap();
    assert_eq!((summary.processed, log.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_now_ends_the_drain_and_commits_finished_records() {
    let kafka = mock("orders", 2, 3);
    let config = kafka.consumer_config("g");
    let begun = Log::default();
    let mut serving =
        serve(with_long_drain(consumer(config.clone(), "orders")), hanging_on_odd_offsets(&begun));
    let handle = serving.handle();
    begun.reaches(4).await;
    until_held(&handle, 2).await;
    serving.begin_shutdown().await;
    handle.shutdown_now();
    let summary = serving.ended().await.unwrap();
    assert_eq!((summary.processed, summary.unfinished), (2, 4));
    assert_eq!(committed(&config, "orders", 2), [Some(1); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_now_releases_locks_and_restores_attempts() {
    let kafka = mock("orders", 4, 1);
    let config = kafka.consumer_config("g");
    let store = MemoryStore::new();
    let attempts = Arc::new(AtomicU32::new(0));
    let stack = |hangs: bool, log: &Log| {
        let (log, attempts) = (log.clone(), attempts.clone());
        // A lock that is not released would be held far longer than the test may take.
        let config = IdempotencyConfig::new("orders").with_lock_ttl(Duration::from_secs(3600));
        let layer = IdempotencyLayer::new(store.clone(), config, key::coordinates()).unwrap();
        ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
            move |request: Request| {
                log.push(request.record());
                attempts.fetch_max(request.lock().map_or(0, LockHandle::attempt), Ordering::SeqCst);
                async move {
                    if hangs {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, BoxError>(())
                }
            },
        )
    };
    let (begun, again) = (Log::default(), Log::default());
    let serving = serve(with_long_drain(consumer(config.clone(), "orders")), stack(true, &begun));
    begun.reaches(4).await;
    serving.handle().shutdown_now();
    assert_eq!(serving.ended().await.unwrap().unfinished, 4);

    let serving = serve(consumer(config.clone(), "orders"), stack(false, &again));
    until_committed(&config, "orders", &[1; 4]).await;
    serving.stop().await.unwrap();
    assert_eq!((again.len(), attempts.load(Ordering::SeqCst)), (4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_now_ignores_unavailable_brokers_and_handlers() {
    let kafka = mock("orders", 2, 3);
    let begun = Log::default();
    let store = FaultyStore::new(MemoryStore::new());
    let layer = IdempotencyLayer::new(store.clone(), "orders", key::coordinates()).unwrap();
    let mut handler = hanging_on_odd_offsets(&begun);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(move |request: Request| handler.call(request.record().clone()));
    let serving = serve(with_long_drain(consumer(kafka.consumer_config("g"), "orders")), service);
    begun.reaches(4).await;
    store.inject_always(Fault::Hang);
    kafka.cluster().broker_down(1).unwrap();
    let start = tokio::time::Instant::now();
    serving.handle().shutdown_now();
    serving.ended().await.unwrap();
    assert_ne!(store.count("release"), 0, "the store was not asked");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    store.heal();
}
