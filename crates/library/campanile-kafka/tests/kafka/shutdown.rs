//! What a shutdown drains, what it interrupts, and that it always ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Record};
use tokio::sync::Semaphore;
use tower::service_fn;

use crate::support::{
    Log, TIMEOUT, committed, consumer, mock, serve, until, until_committed, until_held, within,
};

/// Records how a handler's future is dropped.
struct DropRecorder {
    record: Record,
    dropped: Arc<Mutex<Vec<(i64, bool)>>>,
}

impl Drop for DropRecorder {
    fn drop(&mut self) {
        let interrupted = self.record.attempt().interrupt().is_set();
        self.dropped.lock().unwrap().push((self.record.offset(), interrupted));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_finishes_and_commits_in_flight_records_only() {
    let kafka = mock("orders", 3, 10);
    let config = kafka.consumer_config("g");
    let (begun, ended, gate) = (Log::default(), Log::default(), Arc::new(Semaphore::new(0)));
    let (b, e, g) = (begun.clone(), ended.clone(), gate.clone());
    let service = service_fn(move |record: Record| {
        b.push(&record);
        let (ended, gate) = (e.clone(), g.clone());
        async move {
            gate.acquire().await?.forget();
            ended.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let mut serving = serve(consumer(config.clone(), "orders"), service);
    begun.reaches(3).await;
    serving.begin_shutdown().await;
    // Permits for all records, so that only the shutdown prevents the others from being started.
    gate.add_permits(30);
    let summary = serving.ended().await.unwrap();
    assert_eq!(begun.len(), 3);
    assert_eq!(ended.len(), 3);
    assert_eq!(committed(&config, "orders", 3), [Some(1); 3]);
    assert_eq!(summary.processed, 3);
    assert_eq!(summary.received, summary.processed + summary.unfinished);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_record_is_interrupted_before_its_drop() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let (begun, dropped) = (Log::default(), Arc::default());
    let (b, d) = (begun.clone(), Arc::clone(&dropped));
    let service = service_fn(move |record: Record| {
        b.push(&record);
        let recorder = DropRecorder { record: record.clone(), dropped: Arc::clone(&d) };
        async move {
            let _recorder = recorder;
            if record.offset() == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(())
        }
    });
    let consumer =
        consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(100));
    let serving = serve(consumer, service);
    begun.reaches(2).await;
    until_held(&serving.handle(), 2).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(*dropped.lock().unwrap(), [(0, false), (1, true)]);
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    assert_eq!((summary.processed, summary.unfinished), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_consumer_redelivers_only_unfinished_records() {
    let kafka = mock("orders", 2, 10);
    let config = kafka.consumer_config("g");
    let (begun, ended, dropped) = (Log::default(), Log::default(), Arc::default());
    let (b, e, d) = (begun.clone(), ended.clone(), Arc::clone(&dropped));
    let service = service_fn(move |record: Record| {
        b.push(&record);
        let recorder = DropRecorder { record: record.clone(), dropped: Arc::clone(&d) };
        let ended = e.clone();
        async move {
            let _recorder = recorder;
            if record.offset() == 4 {
                std::future::pending::<()>().await;
            }
            ended.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until("both partitions hang", || begun.len() == 10).await;
    serving.drop().await;
    until_committed(&config, "orders", &[4, 4]).await;
    until("both futures are dropped", || dropped.lock().unwrap().len() == 10).await;
    let interrupted: Vec<_> =
        dropped.lock().unwrap().iter().filter(|(_, i)| *i).map(|(offset, _)| *offset).collect();
    assert_eq!(interrupted, [4, 4]);

    let again = Log::default();
    let seen = again.clone();
    let serving = serve(
        consumer(config.clone(), "orders"),
        service_fn(move |record: Record| {
            seen.push(&record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    until_committed(&config, "orders", &[10, 10]).await;
    serving.stop().await.unwrap();
    for partition in 0..2 {
        assert_eq!(again.of(partition), (4..10).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_broker_does_not_block_shutdown() {
    let kafka = mock("orders", 2, 10);
    let log = Log::default();
    let seen = log.clone();
    let serving = serve(
        consumer(kafka.consumer_config("g"), "orders"),
        service_fn(move |record: Record| {
            seen.push(&record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    log.reaches(20).await;
    kafka.cluster().broker_down(1).unwrap();
    let start = tokio::time::Instant::now();
    serving.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handler_does_not_block_shutdown() {
    let kafka = mock("orders", 1, 3);
    let begun = Arc::new(AtomicUsize::new(0));
    let release = Arc::new(AtomicBool::new(false));
    let (b, r) = (begun.clone(), release.clone());
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_drain_timeout(Duration::from_millis(50));
    let serving = serve(
        consumer,
        service_fn(move |_: Record| {
            let (begun, release) = (b.clone(), r.clone());
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                let mut waited = Duration::ZERO;
                while !release.load(Ordering::SeqCst) && waited < TIMEOUT {
                    std::thread::sleep(Duration::from_millis(5));
                    waited += Duration::from_millis(5);
                }
                Ok::<_, BoxError>(())
            }
        }),
    );
    until("a record is in flight", || begun.load(Ordering::SeqCst) == 1).await;
    until_held(&serving.handle(), 3).await;
    let summary = within("the shutdown completes", serving.stop()).await.unwrap();
    assert!(!release.load(Ordering::SeqCst), "the handler still blocks");
    release.store(true, Ordering::SeqCst);
    assert_eq!((summary.processed, summary.unfinished), (0, 3));
}
