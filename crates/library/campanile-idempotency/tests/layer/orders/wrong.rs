//! What must not be combined with the layer, and what happens if it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use campanile_core::{BoxError, LockHandle, LostCause, Outcome, Request, State};
use campanile_idempotency::IdempotencyError;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::run::{TIMEOUT, mock_handler};
use crate::harness::{HOUR, Harness, TTL, TestService, layer_error, lock, request};

/// Repeats a request that has no response after a while, and takes the first response. tower's own
/// hedge is not `Clone`, and would need a buffer inside the layer.
#[derive(Clone)]
struct Hedge<S>(S);

impl<S> Service<Request<()>> for Hedge<S>
where
    S: Service<Request<()>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let one = Box::pin(self.0.call(request.clone()));
        let service = self.0.clone();
        let other = Box::pin(async move {
            sleep(TIMEOUT).await;
            service.oneshot(request).await
        });
        Box::pin(select(one, other).map(|ended| ended.factor_first().0))
    }
}

/// Work that a handler spawns is not dropped with the handler. Only a receiver that compares tokens
/// is safe.
#[tokio::test(start_paused = true)]
async fn spawned_work_overlaps_next_attempt_with_smaller_token() {
    let harness = Harness::new();
    let running = Arc::new(AtomicUsize::new(0));
    let counted = running.clone();
    let (locks, mut seen) = mpsc::unbounded_channel::<LockHandle>();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        // drops the handler, but not the task that it has spawned
        .timeout(TIMEOUT)
        .service(service_fn(move |request: Request<()>| {
            let (running, locks) = (counted.clone(), locks.clone());
            let work = tokio::spawn(async move {
                locks.send(lock(&request)).unwrap();
                running.fetch_add(1, Ordering::Relaxed);
                sleep(HOUR * 2).await;
                running.fetch_sub(1, Ordering::Relaxed);
            });
            async move { Ok::<_, BoxError>(work.await?) }
        }));
    service.run("p-1").await.unwrap_err();
    let first = seen.recv().await.unwrap();
    assert_eq!(first.check().unwrap_err().cause, LostCause::Ended);
    sleep(HOUR).await;
    let call = service.start(request("p-1"));
    let second = seen.recv().await.unwrap();
    assert_eq!(running.load(Ordering::Relaxed), 2);
    assert!(second.check().is_ok() && second.token() > first.token());
    call.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn hedge_inside_runs_twice_under_one_token() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new().layer(harness.layer()).service(Hedge(handler));
    let call = service.start(request("p-1"));
    let (one, _one) = handle.next_request().await.unwrap();
    let (other, respond) = handle.next_request().await.unwrap();
    assert!(lock(&one).check().is_ok() && lock(&other).check().is_ok());
    assert_eq!(lock(&one).token(), lock(&other).token());
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// The second request is refused, and its error is the first result: the first request is dropped
/// while its handler runs.
#[tokio::test(start_paused = true)]
async fn hedge_outside_drops_first_run_when_second_is_locked() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let call = Hedge(harness.layer().layer(handler)).start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    let result = call.await.unwrap();
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { .. }));
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

/// Like tower-http's timeout, which responds with 408.
#[tokio::test(start_paused = true)]
async fn failure_mapped_to_response_inside_is_recorded_as_success() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .map_result(|answer: Result<_, BoxError>| Ok::<_, BoxError>(answer.unwrap_or("408")))
        .timeout(TIMEOUT)
        .service(handler);
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("408"));
    assert_eq!(harness.state("p-1"), Some(State::Completed));
    sleep(TTL).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate(), "never tried again");
}
