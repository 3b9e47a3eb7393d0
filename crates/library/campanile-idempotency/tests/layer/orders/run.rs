//! What the common orders of layers mean.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{
    BoxError, DecodeError, DecodeLayer, Outcome, Record, Request, State, error, key,
};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::load_shed::error::Overloaded;
use tower::retry::Policy;
use tower::timeout::error::Elapsed;
use tower::{ServiceBuilder, ServiceExt};
use tower_test::mock;

use crate::harness::{
    HOUR, Harness, MockHandle, MockHandler, TTL, TestService, failed, lock, request, run_until_idle,
};

pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Retries a fixed number of times, each after the same delay.
#[derive(Clone)]
pub(super) struct FixedRetry {
    pub(super) retries: u32,
    pub(super) delay: Duration,
}

impl<T> Policy<Request<()>, T, BoxError> for FixedRetry {
    type Future = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(
        &mut self,
        _: &mut Request<()>,
        result: &mut Result<T, BoxError>,
    ) -> Option<Self::Future> {
        result.as_ref().err()?;
        self.retries = self.retries.checked_sub(1)?;
        Some(Box::pin(sleep(self.delay)))
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }
}

pub(super) fn mock_handler() -> (MockHandler, MockHandle) {
    mock::pair()
}

#[tokio::test(start_paused = true)]
async fn decode_idempotency_decodes_every_delivery_before_locking() {
    let harness = Harness::new();
    let decoded = Arc::new(AtomicUsize::new(0));
    let counted = decoded.clone();
    let decode = DecodeLayer::with(move |record: &Record| {
        counted.fetch_add(1, Ordering::Relaxed);
        record.payload().map(|payload| payload.len()).ok_or("no payload")
    });
    let service = ServiceBuilder::new()
        .layer(decode)
        .layer(IdempotencyLayer::new(&harness.keeper, "payments", key::header("id")).unwrap())
        .service_fn(|request: Request<usize>| ready(Ok::<_, BoxError>(request.into_body())));
    let record = |id: &'static str| Record::builder("payments", 0, 0).header("id", id);
    let bad = service.clone().oneshot(record("bad").build()).await.unwrap_err();
    assert!(error::find::<DecodeError>(&*bad).is_some());
    assert_eq!(harness.store.commands(), [], "no lock, and no attempt");

    let good = record("good").payload("1234").build();
    let outcome = service.clone().oneshot(good.clone()).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(4));
    decoded.store(0, Ordering::Relaxed);
    assert!(service.oneshot(good).await.unwrap().is_duplicate());
    assert_eq!(decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn raw_idempotency_decode_gives_up_invalid_record_under_lock() {
    let harness = Harness::new();
    let decoded = Arc::new(AtomicUsize::new(0));
    let counted = decoded.clone();
    let decode = DecodeLayer::with(move |record: &Record| {
        counted.fetch_add(1, Ordering::Relaxed);
        record.payload().map(|payload| payload.len()).ok_or("no payload")
    });
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(IdempotencyLayer::new(&harness.keeper, "payments", key::header("id")).unwrap())
        .layer(decode)
        .service_fn(|request: Request<usize>| ready(Ok::<_, BoxError>(request.into_body())));
    let record = |id: &'static str| Record::builder("payments", 0, 0).header("id", id);
    let good = record("good").payload("1234").build();
    let outcome = service.clone().oneshot(good.clone()).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(4));
    assert!(service.clone().oneshot(good).await.unwrap().is_duplicate());
    assert_eq!(decoded.load(Ordering::Relaxed), 1, "a duplicate is not decoded");

    let result = service.oneshot(record("bad").build()).await;
    let failure = failed(&result);
    assert!(error::find::<DecodeError>(&*failure.source).is_some());
    failure.take_lock().unwrap().give_up("published").await.unwrap();
    assert_eq!(harness.state("bad"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn idempotency_timeout_fails_attempt_of_slow_handler() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new().layer(harness.layer()).timeout(TIMEOUT).service(handler);
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    let result = call.await.unwrap();
    assert!(error::find::<Elapsed>(&*failed(&result).source).is_some());
    assert!(failed(&result).retry_after.is_some());
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("request timed out"));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_cancels_acquire() {
    let harness = Harness::new();
    let (handler, _handle) = mock_handler();
    let service = ServiceBuilder::new()
        .timeout(Duration::from_secs(2))
        .layer(harness.layer())
        .service(handler);
    harness.store.inject_next_of("acquire", Fault::HangReply);
    let error = service.run("p-1").await.unwrap_err();
    assert!(error.is::<Elapsed>());
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_counts_attempt_while_processing() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new().timeout(TIMEOUT).layer(harness.layer()).service(handler);
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    assert!(call.await.unwrap().unwrap_err().is::<Elapsed>());
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_finishes_settlement() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new().timeout(TIMEOUT).layer(harness.layer()).service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Refuse);
    respond.send_response("done");
    assert!(call.await.unwrap().unwrap_err().is::<Elapsed>());
    harness.store.heal();
    sleep(Duration::from_secs(2)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn idempotency_retry_repeats_under_one_lock_and_one_attempt() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let delay = TTL * 2; // the lock is renewed meanwhile
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .retry(FixedRetry { retries: 3, delay })
        .service(handler);
    let call = service.start(request("p-1"));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (request, respond) = handle.next_request().await.unwrap();
        assert!(lock(&request).check().is_ok());
        seen.push((lock(&request).token(), lock(&request).attempt()));
        respond.send_error("gateway busy");
    }
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert!(seen.iter().all(|it| it == &seen[0]));
    assert_eq!(harness.store.count("acquire"), 1);
    assert_eq!(harness.entry("p-1").unwrap().attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_idempotency_acquires_for_each_try() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).retrying_failures())
        .layer(harness.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let (first, respond) = handle.next_request().await.unwrap();
    respond.send_error("gateway busy");
    let (second, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    let (first, second) = (lock(&first), lock(&second));
    assert!(second.token() > first.token());
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
}

/// The stack for production: the outer retry waits for locks, and the inner one repeats the
/// handler.
#[tokio::test(start_paused = true)]
async fn retry_idempotency_retry_timeout_waits_outside_and_repeats_inside() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let delay = Duration::from_secs(1);
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).retrying_failures())
        .layer(harness.layer())
        .retry(FixedRetry { retries: 1, delay })
        .timeout(TIMEOUT)
        .service(handler);
    let call = service.start(request("p-1"));
    let waiter = service.start(request("p-1"));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (hangs, _respond) = handle.next_request().await.unwrap();
        seen.push(lock(&hangs).attempt());
        sleep(TIMEOUT).await;
    }
    let (last, respond) = handle.next_request().await.unwrap();
    seen.push(lock(&last).attempt());
    respond.send_response("done");
    assert_eq!(seen, [1, 1, 2]);
    let outcomes = [call.await.unwrap().unwrap(), waiter.await.unwrap().unwrap()];
    assert_eq!(outcomes.iter().filter(|it| it.is_duplicate()).count(), 1);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn rate_limit_idempotency_counts_duplicates() {
    let harness = Harness::new();
    let mut service = ServiceBuilder::new()
        .rate_limit(1, Duration::from_secs(60))
        .layer(harness.layer())
        .service_fn(|_: Request<()>| ready(Ok::<_, BoxError>(())));
    let start = Instant::now();
    for _ in 0..3 {
        tower::Service::call(service.ready().await.unwrap(), request("p-1")).await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs() / 60, 2);
}

/// A buffer hides the readiness of the service behind it, so the lock is held while a request is
/// queued.
#[tokio::test(start_paused = true)]
async fn idempotency_buffer_holds_lock_while_queued() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .buffer(4)
        .rate_limit(1, TTL * 3)
        .service(handler);
    let calls = [service.start(request("p-1")), service.start(request("p-2"))];
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    run_until_idle().await;
    assert_eq!(harness.state("p-2"), Some(State::Processing));
    let (second, respond) = handle.next_request().await.unwrap();
    assert!(lock(&second).check().is_ok(), "renewed for three times its TTL");
    respond.send_response("done");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn load_shed_idempotency_sheds_before_acquiring() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .load_shed()
        .layer(harness.layer())
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.forget_calls();
    assert!(service.run("p-2").await.unwrap_err().is::<Overloaded>());
    assert_eq!(harness.store.commands(), []);
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn idempotency_load_shed_releases_shed_requests() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .load_shed()
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    for _ in 0..20 {
        let result = service.run("p-2").await;
        assert!(error::find::<Overloaded>(&*failed(&result).source).is_some());
        let entry = harness.entry("p-2").unwrap();
        assert_eq!((entry.attempt(), entry.interrupts()), (0, 0));
    }
    respond.send_response("done");
    call.await.unwrap().unwrap();
    let call = service.start(request("p-2"));
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

/// Outside the retry, a timeout bounds all attempts together.
#[tokio::test(start_paused = true)]
async fn timeout_retry_idempotency_is_a_budget_for_all_attempts() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .timeout(TTL * 3)
        .retry(WaitForLock::new(HOUR).retrying_failures())
        .layer(harness.layer())
        .timeout(TTL)
        .service(handler);
    let call = service.start(request("p-1"));
    let hang = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(request) = handle.next_request().await {
            held.push(request);
        }
    });
    let result = call.await.unwrap();
    assert!(result.as_ref().unwrap_err().is::<Elapsed>());
    assert!(IdempotencyError::find(&**result.as_ref().unwrap_err()).is_none());
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!(entry.state(), State::Retrying);
    assert!((2..=3).contains(&entry.attempt()));
    drop(service);
    hang.await.unwrap();
}
