//! A record that waits for a retry blocks its own partition only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, IdempotencyKey, IntoKey, Record, Request, error, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyError, IdempotencyLayer, MemoryStore};
use tokio::sync::Semaphore;
use tower::{Service, ServiceBuilder, service_fn};

use crate::real::blocking;
use crate::support::{Log, committed, consumer, mock, serve, until, until_committed};

const SOON: Duration = Duration::from_millis(10);

fn a_key() -> IdempotencyKey {
    "k".into_key().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_behind_a_failed_one_wait_for_its_success() {
    let kafka = mock("orders", 2, 5);
    let config = kafka.consumer_config("g");
    let (log, broken) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let (seen, fails) = (log.clone(), broken.clone());
    let attempts = Arc::new(AtomicUsize::new(0));
    let tried = attempts.clone();
    let service = service_fn(move |record: Record| {
        let fail = record.partition() == 0 && record.offset() == 2 && fails.load(Ordering::SeqCst);
        if fail {
            tried.fetch_add(1, Ordering::SeqCst);
        } else {
            seen.push(&record);
        }
        async move {
            match fail {
                true => Err(BoxError::from(error::retry_after("no route", SOON))),
                false => Ok(()),
            }
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until("five attempts are made", || attempts.load(Ordering::SeqCst) >= 5).await;
    // The other partition progresses in the meantime.
    until_committed(&config, "orders", &[2, 5]).await;
    assert_eq!(log.of(0), [0, 1]);
    broken.store(false, Ordering::SeqCst);
    until_committed(&config, "orders", &[5, 5]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(log.of(0), [0, 1, 2, 3, 4]);
    assert_eq!(summary.processed, 10);
    assert_eq!(summary.retried, attempts.load(Ordering::SeqCst) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_panic_is_retried_and_the_next_record_continues() {
    let kafka = mock("orders", 2, 3);
    let config = kafka.consumer_config("g");
    let (log, panics) = (Log::default(), Arc::new(AtomicUsize::new(0)));
    let (seen, count) = (log.clone(), panics.clone());
    let service = service_fn(move |record: Record| {
        let (seen, count) = (seen.clone(), count.clone());
        async move {
            let first = record.partition() == 0 && record.offset() == 1;
            if first && count.fetch_add(1, Ordering::SeqCst) == 0 {
                panic!("injected panic");
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[3, 3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(log.of(0), [0, 1, 2]);
    assert_eq!((summary.processed, summary.retried), (6, 1));
}

/// Panics in its first call.
#[derive(Clone)]
struct PanicsInCall(Arc<AtomicUsize>);

impl Service<Record> for PanicsInCall {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Record) -> Self::Future {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "injected panic");
        std::future::ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_call_equals_a_panic_in_the_future() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let calls = Arc::new(AtomicUsize::new(0));
    let serving = serve(consumer(config.clone(), "orders"), PanicsInCall(calls.clone()));
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!((summary.processed, summary.retried), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_or_backing_off_key_is_retried_without_a_failure() {
    let kafka = mock("orders", 1, 2);
    let config = kafka.consumer_config("g");
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let service = service_fn(move |_: Record| {
        let error = match called.fetch_add(1, Ordering::SeqCst) {
            0 => Some(IdempotencyError::Locked { key: a_key(), retry_after: SOON, settled: None }),
            1 => {
                Some(IdempotencyError::BackingOff { key: a_key(), retry_after: SOON, attempts: 3 })
            }
            _ => None,
        };
        async move { error.map_or(Ok(()), |error| Err(BoxError::from(error))) }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[2]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.retried, summary.inconclusive), (2, 0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_classifier_means_retry() {
    let kafka = mock("orders", 1, 1);
    let config = kafka.consumer_config("g");
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let service = service_fn(move |_: Record| {
        let first = called.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if first { Err(BoxError::from("broken")) } else { Ok(()) } }
    });
    let classifier = |_: &(dyn std::error::Error + 'static)| panic!("injected panic");
    let consumer = consumer(config.clone(), "orders").with_classifier(classifier);
    let serving = serve(consumer, service);
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.retried), (1, 1));
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_in_another_partition_waits_for_the_holder() {
    let kafka = mock("orders", 2, 1);
    let config = kafka.consumer_config("g");
    let layer = IdempotencyLayer::new(
        MemoryStore::new(),
        IdempotencyConfig::new("orders").with_lock_ttl(Duration::from_secs(3600)),
        key::from_fn(|_: &_| "same"),
    )
    .unwrap();
    let (began, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (b, g) = (began.clone(), gate.clone());
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            b.push(request.record());
            let gate = g.clone();
            async move {
                gate.acquire().await?.forget();
                Ok::<_, BoxError>(())
            }
        },
    );
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let service = ServiceBuilder::new()
        .map_request(move |record: Record| {
            called.fetch_add(1, Ordering::SeqCst);
            record
        })
        .service(service);
    let serving = serve(consumer(config.clone(), "orders"), service);
    let handle = serving.handle();
    until("both records were called", || calls.load(Ordering::SeqCst) == 2).await;
    until("the duplicate waits", || handle.status().summary.inconclusive == 1).await;
    // Longer than the interval of commits.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let offsets = config.clone();
    assert_eq!(blocking(move || committed(&offsets, "orders", 2)).await, [None, None]);
    gate.add_permits(1);
    // Much earlier than the lock's time to live would allow.
    until_committed(&config, "orders", &[1, 1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(began.len(), 1);
    assert_eq!((summary.processed, summary.inconclusive), (2, 1));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}
