//! When a batch starts, and with which requests.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::BatchLayer;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{mock_service, pending_batch, respond_to, start};
use crate::harness::{HOUR, run_until_idle};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn request_starts_immediately_if_no_batch_is_running() {
    let (service, mut handle) = mock_service(100, HOUR);
    let started = Instant::now();
    for n in 1..4 {
        let call = start(&service, n);
        let batch = handle.next_request().await.unwrap();
        assert_eq!(batch.0, [n]);
        respond_to(batch);
        assert_eq!(call.await.unwrap().unwrap(), n * 10);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn requests_during_running_batch_form_next_batch() {
    let (service, mut handle) = mock_service(100, HOUR);
    let first = start(&service, 1);
    let running = handle.next_request().await.unwrap();
    let calls = [start(&service, 2), start(&service, 3), start(&service, 4)];
    run_until_idle().await;
    assert!(pending_batch(&mut handle).is_none());
    respond_to(running);
    let batch = handle.next_request().await.unwrap();
    assert_eq!(batch.0, [2, 3, 4]);
    respond_to(batch);
    assert_eq!(first.await.unwrap().unwrap(), 10);
    for (call, expected) in calls.into_iter().zip([20, 30, 40]) {
        assert_eq!(call.await.unwrap().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn full_batch_starts_while_others_are_running() {
    let (service, mut handle) = mock_service(3, HOUR);
    let _first = start(&service, 1);
    let _running = handle.next_request().await.unwrap();
    let _calls: Vec<_> = (2..=6).map(|n| start(&service, n)).collect();
    assert_eq!(handle.next_request().await.unwrap().0, [2, 3, 4]);
    run_until_idle().await;
    assert!(pending_batch(&mut handle).is_none(), "two requests are not a full batch");
}

#[tokio::test(start_paused = true)]
async fn oldest_request_waits_at_most_linger() {
    let (service, mut handle) = mock_service(100, SECOND);
    let _first = start(&service, 1);
    let _running = handle.next_request().await.unwrap();
    let started = Instant::now();
    let _second = start(&service, 2);
    tokio::time::sleep(SECOND / 2).await;
    let _third = start(&service, 3);
    assert_eq!(handle.next_request().await.unwrap().0, [2, 3]);
    let waited = started.elapsed();
    assert!((SECOND..SECOND + Duration::from_millis(2)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn batch_grows_to_max_while_service_is_not_ready() {
    let (service, mut handle) = mock_service(3, Duration::ZERO);
    handle.allow(0);
    let calls: Vec<_> = (1..=5).map(|n| start(&service, n)).collect();
    run_until_idle().await;
    assert!(pending_batch(&mut handle).is_none());
    handle.allow(2);
    for expected in [vec![1, 2, 3], vec![4, 5]] {
        let batch = handle.next_request().await.unwrap();
        assert_eq!(batch.0, expected);
        respond_to(batch);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_limited_to_two_batches() {
    let (service, mut handle) = mock_service(2, HOUR);
    handle.allow(0);
    let _calls: Vec<_> = (1..=4).map(|n| start(&service, n)).collect();
    run_until_idle().await;
    let mut fifth = service.clone();
    assert!(fifth.ready().now_or_never().is_none());
    handle.allow(1);
    // The first batch has started.
    assert_eq!(handle.next_request().await.unwrap().0, [1, 2]);
    fifth.ready().await.unwrap();
    // One permit is left, and a clone does not share the permit of `fifth`.
    let mut sixth = fifth.clone();
    sixth.ready().await.unwrap();
    assert!(sixth.clone().ready().now_or_never().is_none());
    drop(fifth);
    sixth.clone().ready().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_dropped_while_waiting_is_not_passed_to_service() {
    let (service, mut handle) = mock_service(100, HOUR);
    let _first = start(&service, 1);
    let running = handle.next_request().await.unwrap();
    let (second, third, fourth) = (start(&service, 2), start(&service, 3), start(&service, 4));
    run_until_idle().await;
    second.abort();
    fourth.abort();
    run_until_idle().await;
    respond_to(running);
    let batch = handle.next_request().await.unwrap();
    assert_eq!(batch.0, [3]);
    respond_to(batch);
    assert_eq!(third.await.unwrap().unwrap(), 30);
    run_until_idle().await;
    let free = format!("{service:?}");
    assert!(free.contains("free: 200"), "dropped requests released their permits: {free}");
}

#[tokio::test(start_paused = true)]
async fn request_dropped_from_running_batch_does_not_affect_others() {
    let (service, mut handle) = mock_service(100, HOUR);
    let _first = start(&service, 1);
    let running = handle.next_request().await.unwrap();
    let (second, third) = (start(&service, 2), start(&service, 3));
    run_until_idle().await;
    respond_to(running);
    let batch = handle.next_request().await.unwrap();
    second.abort();
    run_until_idle().await;
    respond_to(batch);
    assert_eq!(third.await.unwrap().unwrap(), 30);
}

#[tokio::test(start_paused = true)]
async fn batch_without_callers_is_dropped() {
    let held = Arc::new(());
    let held_by_handler = held.clone();
    let handler = service_fn(move |batch: Vec<u32>| {
        let held = held_by_handler.clone();
        async move {
            if batch.contains(&0) {
                std::future::pending::<()>().await;
            }
            drop(held);
            Ok::<_, BoxError>(batch.into_iter().map(Ok::<_, BoxError>).collect())
        }
    });
    let service = BatchLayer::new(100, Duration::ZERO).unwrap().layer(handler);
    let hanging = start(&service, 0);
    run_until_idle().await;
    assert_eq!(Arc::strong_count(&held), 3);
    hanging.abort();
    run_until_idle().await;
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(start(&service, 1).await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_served_after_service_is_dropped() {
    let (mut service, mut handle) = mock_service(100, HOUR);
    let first = service.ready().await.unwrap().call(1);
    let running = handle.next_request().await.unwrap();
    let second = service.ready().await.unwrap().call(2);
    drop(service);
    assert_eq!(handle.next_request().await.unwrap().0, [2]);
    respond_to(running);
    assert_eq!(first.await.unwrap(), 10);
    drop(second);
    assert!(handle.next_request().await.is_none(), "the worker has stopped");
}

#[test]
fn batch_size_out_of_range_is_rejected() {
    for max in [0, 65_537] {
        let error = BatchLayer::<u32>::new(max, HOUR).unwrap_err().to_string();
        assert!(error.contains(&max.to_string()), "{error}");
    }
    assert!(BatchLayer::<u32>::new(65_536, HOUR).is_ok());
}

#[tokio::test(start_paused = true)]
async fn unlimited_linger_waits_for_a_full_batch() {
    let (service, mut handle) = mock_service(2, Duration::MAX);
    handle.allow(2);
    let first = start(&service, 1);
    let running = handle.next_request().await.unwrap();
    let second = start(&service, 2);
    sleep(HOUR).await;
    assert!(pending_batch(&mut handle).is_none());
    let third = start(&service, 3);
    respond_to(handle.next_request().await.unwrap());
    respond_to(running);
    for (call, reply) in [(first, 10), (second, 20), (third, 30)] {
        assert_eq!(call.await.unwrap().unwrap(), reply);
    }
}
