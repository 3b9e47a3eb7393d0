//! A panic in user code costs its own record an attempt, and affects nothing else.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use campanile_core::{BoxError, Disposition, Entry, Outcome, Request, State, classify};
use campanile_idempotency::{IdempotencyError, Panicked};
use campanile_test::faults::Fault;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::harness::{Harness, TTL, TestService, failed, layer_error, request, run_until_idle};

/// When a handler panics.
#[derive(Clone, Copy, Debug)]
enum PanicPoint {
    Called,
    PolledFirst,
    PolledLater,
    /// When its future is dropped, after the response.
    Dropped,
    /// When its error is displayed.
    Displayed,
}

use PanicPoint::{Called, Displayed, Dropped, PolledFirst, PolledLater};

/// Panics in the handler itself, with their messages. They are caught and become the handler's
/// error.
const IN_HANDLER: [(PanicPoint, &str); 3] =
    [(Called, "in the call"), (PolledFirst, "in a poll"), (PolledLater, "in a poll")];

/// Panics after the response. They propagate to the caller.
const AFTER_RESPONSE: [PanicPoint; 2] = [Dropped, Displayed];

fn all() -> impl Iterator<Item = PanicPoint> {
    IN_HANDLER.into_iter().map(|(panics, _)| panics).chain(AFTER_RESPONSE)
}

#[derive(Debug)]
struct PanickingError;

impl fmt::Display for PanickingError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("in the error")
    }
}

impl Error for PanickingError {}

impl Service<Request<()>> for PanicPoint {
    type Response = ();
    type Error = BoxError;
    type Future = PanickingFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> PanickingFuture {
        assert!(!matches!(self, Called), "in the call");
        PanickingFuture(*self, 0)
    }
}

struct PanickingFuture(PanicPoint, u32);

impl Future for PanickingFuture {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.1 += 1;
        match (self.0, self.1) {
            (PolledFirst, _) | (PolledLater, 3) => panic!("in a poll"),
            (Dropped, _) => Poll::Ready(Ok(())),
            (Displayed, _) => Poll::Ready(Err(Box::new(PanickingError))),
            _ => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for PanickingFuture {
    fn drop(&mut self) {
        let panics = matches!(self.0, Dropped) && !std::thread::panicking();
        assert!(!panics, "in the drop");
    }
}

fn assert_counted(entry: &Entry, attempt: u16, panics: PanicPoint) {
    let seen = (entry.state(), entry.attempt(), entry.is_released());
    assert_eq!(seen, (State::Retrying, attempt, false), "{panics:?}");
    let error = entry.error().unwrap_or_default();
    assert!(error.starts_with("the handler panicked"), "{panics:?}: {error}");
}

#[tokio::test(start_paused = true)]
async fn handler_panic_is_failed_attempt_with_its_message() {
    for (panics, message) in IN_HANDLER {
        let harness = Harness::new();
        let result = harness.layer().layer(panics).run("p-1").await;
        let failed = failed(&result);
        assert_eq!(failed.disposition, Disposition::Retry { after: None }, "{panics:?}");
        assert_eq!(failed.source.downcast_ref::<Panicked>().unwrap().message(), message);
        let entry = harness.entry("p-1").unwrap();
        assert_counted(&entry, 1, panics);
        assert_eq!(entry.error().unwrap(), format!("the handler panicked: {message}"));
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn handler_panic_can_be_classified() {
    let harness = Harness::new();
    let by_panic = classify::on(|panicked: &Panicked| {
        assert_eq!(panicked.message(), "in a poll");
        Disposition::DeadLetter
    });
    let result = harness.layer().with_classifier(by_panic).layer(PolledLater).run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
}

#[tokio::test(start_paused = true)]
async fn panic_after_response_is_failed_attempt_and_releases_lock() {
    for panics in AFTER_RESPONSE {
        let harness = Harness::new();
        let call = harness.layer().layer(panics).start(request("p-1"));
        assert!(call.await.unwrap_err().is_panic(), "{panics:?}");
        run_until_idle().await;
        assert_counted(&harness.entry("p-1").unwrap(), 1, panics);
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn panic_caught_by_caller_counts_as_attempt() {
    for panics in AFTER_RESPONSE {
        let harness = Harness::new();
        let service = harness.layer().layer(panics);
        let mut call = Box::pin(AssertUnwindSafe(service.oneshot(request("p-1"))).catch_unwind());
        assert!(call.as_mut().await.is_err(), "{panics:?}");
        // The drop does not panic again.
        drop(call);
        run_until_idle().await;
        assert_counted(&harness.entry("p-1").unwrap(), 1, panics);
        harness.assert_settled().await;
    }
}

/// Otherwise a record that panics during a rebalance would never run out of attempts.
#[tokio::test(start_paused = true)]
async fn panic_of_interrupted_record_counts_as_attempt() {
    for panics in all() {
        let harness = Harness::new();
        let request = request("p-1");
        let record = request.record().clone();
        record.attempt().set_interrupted();
        drop(harness.layer().layer(panics).start(request).await);
        record.attempt().lock_released().await;
        assert_counted(&harness.entry("p-1").unwrap(), 1, panics);
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn always_panicking_handler_runs_out_of_attempts() {
    for panics in all() {
        let harness = Harness::new();
        let service = harness.layer_with(|config| config.with_max_attempts(3)).layer(panics);
        for attempt in 1..=3 {
            drop(service.start(request("p-1")).await);
            run_until_idle().await;
            assert_counted(&harness.entry("p-1").unwrap(), attempt, panics);
            sleep(TTL).await;
        }
        let result = service.run("p-1").await;
        assert!(matches!(layer_error(&result), IdempotencyError::Exhausted(_)), "{panics:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_releases_permit_for_next_record() {
    for panics in all() {
        let harness = Harness::new();
        let service =
            ServiceBuilder::new().layer(harness.layer()).concurrency_limit(1).service(panics);
        for number in 0..3 {
            let call = service.start(request(&format!("p-{number}")));
            let ended = timeout(TTL, call).await.expect("a permit is available");
            assert!(
                ended.is_err_and(|e| e.is_panic())
                    != matches!(panics, Called | PolledFirst | PolledLater)
            );
        }
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn classifier_panic_means_retry() {
    let harness = Harness::new();
    let layer = harness.layer();
    let layer = layer.with_classifier(|_: &(dyn Error + 'static)| panic!("in the classifier"));
    let service =
        layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("gateway busy".into())));
    let result = service.run("p-1").await;
    let IdempotencyError::AttemptFailed(failed) = layer_error(&result) else {
        panic!("expected a failed attempt");
    };
    assert_eq!(failed.disposition, Disposition::Retry { after: None });
    assert!(failed.retry_after.is_some());
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn store_panic_does_not_affect_other_requests() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Panic);
    assert!(matches!(layer_error(&service.run("p-2").await), IdempotencyError::Store(_)));
    sleep(TTL / 2).await;
    harness.store.heal();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    harness.assert_settled().await;
}
