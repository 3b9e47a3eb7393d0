//! tower's retry, timeout and concurrency limit, inside and around the layer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Request, WaitForLock};
use tower::ServiceBuilder;
use tower::retry::Policy;

use super::{PAYLOADS_WITH_DUPLICATE, idempotency_layer, serve, start_kafka};

/// Retries the handler once.
#[derive(Clone)]
struct RetryOnce(bool);

impl<R: Clone, T> Policy<R, T, BoxError> for RetryOnce {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut R, result: &mut Result<T, BoxError>) -> Option<Self::Future> {
        (result.is_err() && std::mem::take(&mut self.0)).then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}

/// A handler that fails its first call for each payment, and counts its calls.
#[derive(Clone, Default)]
struct Flaky {
    calls: Arc<AtomicU32>,
    attempts: Arc<AtomicU32>,
    seen: Arc<Mutex<HashSet<String>>>,
}

impl Flaky {
    async fn handle(self, request: Request<super::Payment>) -> Result<(), BoxError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.attempts.fetch_max(request.lock().unwrap().attempt(), Ordering::Relaxed);
        let is_first = self.seen.lock().unwrap().insert(request.body().id.clone());
        if is_first { Err("the first call fails".into()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn retry_timeout_and_limit_inside_repeat_under_one_attempt() {
    let kafka = start_kafka(PAYLOADS_WITH_DUPLICATE);
    let flaky = Flaky::default();
    let handler = flaky.clone();
    let service = ServiceBuilder::new()
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // One lock and one attempt for both tries.
        .layer(idempotency_layer())
        // Retries once, at once.
        .retry(RetryOnce(true))
        // Each try has its own timeout.
        .timeout(Duration::from_secs(5))
        // One call at a time.
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        .service_fn(move |request| handler.clone().handle(request));
    let summary = serve(&kafka, 4, service).await.unwrap();
    assert_eq!((summary.processed, summary.retried), (4, 0));
    assert_eq!(flaky.attempts.load(Ordering::Relaxed), 1);
    assert_eq!(flaky.calls.load(Ordering::Relaxed), 6, "three keys, two tries each");
}

#[tokio::test]
async fn retry_timeout_and_limit_around_acquire_for_each_try() {
    let kafka = start_kafka(PAYLOADS_WITH_DUPLICATE);
    let flaky = Flaky::default();
    let handler = flaky.clone();
    let service = ServiceBuilder::new()
        // Waits for locks, and for the backoff of failed attempts.
        .retry(WaitForLock::new(Duration::from_secs(10)).retrying_failures())
        // A safety net: longer than any timeout inside.
        .timeout(Duration::from_secs(20))
        // One call at a time.
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(1))
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // Each try is an attempt.
        .layer(idempotency_layer())
        .service_fn(move |request| handler.clone().handle(request));
    let summary = serve(&kafka, 4, service).await.unwrap();
    // The driver saw none of the failures.
    assert_eq!((summary.processed, summary.retried), (4, 0));
    assert_eq!(flaky.calls.load(Ordering::Relaxed), 6, "three keys, two tries each");
    assert_eq!(flaky.attempts.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn driver_retries_without_retry_layer() {
    let kafka = start_kafka(PAYLOADS_WITH_DUPLICATE);
    let flaky = Flaky::default();
    let handler = flaky.clone();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(idempotency_layer())
        .concurrency_limit(1)
        .service_fn(move |request| handler.clone().handle(request));
    let summary = serve(&kafka, 4, service).await.unwrap();
    assert_eq!(summary.processed, 4);
    assert_eq!(summary.retried, 3, "the first try of each of three keys");
    assert_eq!(flaky.calls.load(Ordering::Relaxed), 6);
}
