//! Which request holds a concurrency limit's permit, and for how long.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Request};
use campanile_idempotency::policy::OnLocked;
use campanile_test::faults::Fault;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{ServiceBuilder, service_fn};

use super::run::{FixedRetry, TIMEOUT, mock_handler};
use crate::harness::{Harness, TTL, TestService, is_pending, lock, request};

#[tokio::test(start_paused = true)]
async fn idempotency_concurrency_takes_and_releases_permit_before_lock() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let next = service.start(request("p-2"));
    assert!(is_pending(&next).await);
    assert_eq!(harness.store.count("acquire"), 1, "permit first, then lock");
    next.abort();

    harness.store.inject_next_of("complete", Fault::HangReply);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(permits.available_permits(), 1);
    harness.store.release();
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn idempotency_retry_concurrency_reacquires_permit_under_lock() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let delay = Duration::from_secs(1);
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .retry(FixedRetry { retries: 1, delay })
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_error("gateway busy");
    // During the delay of the retry, another request gets the permit.
    let other = service.start(request("p-2"));
    let (_, respond) = handle.next_request().await.unwrap();
    sleep(TTL).await;
    assert!(is_pending(&call).await);
    respond.send_response("done");
    other.await.unwrap().unwrap();
    let (request, respond) = handle.next_request().await.unwrap();
    assert!(lock(&request).check().is_ok());
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_lets_duplicates_wait_for_permits() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service =
        ServiceBuilder::new().concurrency_limit(1).layer(harness.layer()).service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let duplicate = service.start(request("p-1"));
    assert!(is_pending(&duplicate).await);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(duplicate.await.unwrap().unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn idempotency_concurrency_holds_permit_until_duplicate_is_known() {
    let harness = Harness::new();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));

    harness.store.inject_next_of("acquire", Fault::HangReply);
    let duplicate = service.start(request("p-1"));
    assert!(is_pending(&duplicate).await);
    assert_eq!(permits.available_permits(), 0);
    harness.store.release();
    assert!(duplicate.await.unwrap().unwrap().is_duplicate());
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_holds_permit_while_settling() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .layer(harness.layer())
        .service(handler);
    harness.store.inject_next_of("complete", Fault::HangReply);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(permits.available_permits(), 0);
    harness.store.release();
    call.await.unwrap().unwrap();
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_holds_permit_while_waiting_for_lock() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let holder = other_service.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();

    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .concurrency_limit(1)
        .layer(harness.layer().on_locked(OnLocked::Wait { at_most: TIMEOUT * 10 }))
        .service(handler);
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let other = service.start(request("p-2"));
    assert!(is_pending(&other).await);
    assert_eq!(harness.state("p-2"), None, "other keys wait too");
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    other.await.unwrap().unwrap();
}
