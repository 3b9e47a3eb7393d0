//! Failures of a whole batch, and failures of one request in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{BoxError, error};
use campanile_idempotency::{BatchError, BatchLayer, BatchService};
use futures_util::FutureExt;
use tokio::runtime::Builder;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{Results, mock_service, respond_to, start};
use crate::harness::{HOUR, run_until_idle};

fn batch_error(error: &BoxError) -> &BatchError {
    error::find::<BatchError>(&**error).unwrap()
}

#[tokio::test(start_paused = true)]
async fn failed_request_does_not_fail_others_in_its_batch() {
    let (service, mut handle) = mock_service(3, HOUR);
    handle.allow(0);
    let calls: Vec<_> = (1..=3).map(|n| start(&service, n)).collect();
    run_until_idle().await;
    handle.allow(1);
    let (_, reply) = handle.next_request().await.unwrap();
    let bad = error::permanent("card expired").into();
    reply.send_response(vec![Ok(10), Err(bad), Ok(30)]);
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap());
    }
    assert_eq!((results[0].as_ref().unwrap(), results[2].as_ref().unwrap()), (&10, &30));
    let own = results[1].as_ref().unwrap_err();
    assert!(own.is::<error::Permanent>(), "its own error, unchanged: {own:?}");
}

/// A service with batches of two. The first request of a batch selects what the handler does.
fn faulty_service() -> BatchService<u32, u32> {
    let handler = service_fn(|batch: Vec<u32>| {
        let n = batch[0];
        assert!(n != 1, "test panic in the call");
        async move {
            assert!(n != 2, "test panic in the future");
            match n {
                3 => Err(BoxError::from(error::permanent("no table"))),
                4 => Ok(vec![Ok(0)]),
                5 => Ok(vec![]),
                6 => Ok((0..3).map(Ok).collect::<Results>()),
                _ => Ok(batch.into_iter().map(Ok).collect()),
            }
        }
    });
    BatchLayer::new(2, Duration::ZERO).unwrap().layer(handler)
}

/// Runs two requests in one batch.
async fn run_two(n: u32) -> [Result<u32, BoxError>; 2] {
    let mut service = faulty_service();
    // Both calls are made before the worker runs, so they form one batch.
    let one = service.ready().await.unwrap().call(n);
    let other = service.ready().await.unwrap().call(n);
    let results = [one.await, other.await];
    // The service still works.
    assert_eq!(service.oneshot(7).await.unwrap(), 7);
    results
}

#[tokio::test(start_paused = true)]
async fn service_panic_fails_each_request() {
    for n in [1, 2] {
        for result in run_two(n).await {
            assert!(matches!(batch_error(&result.unwrap_err()), BatchError::Panicked));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn service_error_is_source_of_each_request_error() {
    for result in run_two(3).await {
        let error = result.unwrap_err();
        assert!(matches!(batch_error(&error), BatchError::Failed(_)));
        assert!(error::find::<error::Permanent>(&*error).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_number_of_results_fails_each_request() {
    for (n, number) in [(4, 1), (5, 0), (6, 3)] {
        for result in run_two(n).await {
            match *batch_error(&result.unwrap_err()) {
                BatchError::WrongNumber { requests: 2, results } => assert_eq!(results, number),
                ref other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closed_service_fails_all_requests() {
    let (service, mut handle) = mock_service(1, HOUR);
    let running = start(&service, 1);
    let batch = handle.next_request().await.unwrap();
    handle.allow(0);
    let waiting = [start(&service, 2), start(&service, 3)];
    run_until_idle().await;
    let mut waiting_for_permit = tokio::spawn({
        let mut service = service.clone();
        async move { service.ready().await.map(|_| ()) }
    });
    run_until_idle().await;
    assert!((&mut waiting_for_permit).now_or_never().is_none());
    handle.send_error("the pool is closed");
    for call in waiting {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(batch_error(&error), BatchError::Closed(Some(_))), "{error:?}");
        assert!(format!("{error:?}").contains("the pool is closed"));
    }
    waiting_for_permit.await.unwrap().unwrap_err();
    let error = service.clone().ready().await.map(|_| ()).unwrap_err();
    assert!(matches!(batch_error(&error), BatchError::Closed(Some(_))), "{error:?}");
    // A batch that is already running may still complete.
    respond_to(batch);
    assert_eq!(running.await.unwrap().unwrap(), 10);
}

#[test]
fn service_is_closed_once_the_runtime_of_its_first_call_has_ended() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mut service = faulty_service();
    let mut ready = service.clone();
    assert!(ready.ready().now_or_never().unwrap().is_ok());
    assert_eq!(runtime.block_on(service.clone().oneshot(7)).unwrap(), 7);
    let unanswered = runtime.block_on(service.ready()).unwrap().call(7);
    drop(runtime);
    let error = unanswered.now_or_never().unwrap().unwrap_err();
    assert!(matches!(batch_error(&error), BatchError::Interrupted), "{error:?}");
    let error = ready.call(7).now_or_never().unwrap().unwrap_err();
    assert!(matches!(batch_error(&error), BatchError::Closed(None)), "{error:?}");
    let error = service.ready().now_or_never().unwrap().unwrap_err();
    assert!(matches!(batch_error(&error), BatchError::Closed(None)), "{error:?}");
}

#[test]
fn call_outside_of_a_runtime_does_not_break_the_service() {
    let mut service = faulty_service();
    assert!(service.ready().now_or_never().unwrap().is_ok());
    catch_unwind(AssertUnwindSafe(|| drop(service.call(7)))).unwrap_err();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(runtime.block_on(service.oneshot(7)).unwrap(), 7);
}

/// A service that panics in `poll_ready`.
struct PanickingService;

impl Service<Vec<u32>> for PanickingService {
    type Response = Results;
    type Error = BoxError;
    type Future = std::future::Pending<Result<Results, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        panic!("test panic")
    }

    fn call(&mut self, _: Vec<u32>) -> Self::Future {
        unreachable!("the service is never ready")
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_poll_ready_closes_service() {
    let service = BatchLayer::new(1, HOUR).unwrap().layer(PanickingService);
    let error = service.clone().oneshot(1).await.unwrap_err();
    assert!(matches!(batch_error(&error), BatchError::Closed(None)), "{error:?}");
    service.oneshot(2).await.unwrap_err();
}
