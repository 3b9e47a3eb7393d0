//! Retry and timeout on the same side of the layer.

use std::time::Duration;

use campanile_core::{Outcome, State, error};
use campanile_idempotency::WaitForLock;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower::timeout::error::Elapsed;

use super::run::{FixedRetry, TIMEOUT, mock_handler};
use crate::harness::{HOUR, Harness, TestService, failed, lock, request};

#[tokio::test(start_paused = true)]
async fn retry_timeout_idempotency_is_a_budget_for_each_attempt() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        // retries after the backoff
        .retry(FixedRetry { retries: 1, delay: HOUR })
        .timeout(TIMEOUT)
        .layer(harness.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let (first, _respond) = handle.next_request().await.unwrap();
    let (second, respond) = handle.next_request().await.unwrap();
    assert!(lock(&first).check().is_err());
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert_eq!((lock(&first).attempt(), lock(&second).attempt()), (1, 2));
    assert!(lock(&second).token() > lock(&first).token());
}

#[tokio::test(start_paused = true)]
async fn retry_timeout_idempotency_is_not_blocked_by_dropped_attempt() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        // retries immediately
        .retry(FixedRetry { retries: 1, delay: Duration::ZERO })
        .timeout(TIMEOUT)
        // waits until the drop is settled, and then for the backoff
        .retry(WaitForLock::new(TIMEOUT))
        .layer(harness.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    let start = Instant::now();
    let (second, respond) = handle.next_request().await.unwrap();
    // The first backoff lasts at most one second.
    assert!(start.elapsed() <= TIMEOUT + Duration::from_millis(1100), "{:?}", start.elapsed());
    assert_eq!(lock(&second).attempt(), 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn idempotency_timeout_retry_is_a_budget_for_all_tries_in_one_lock() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .timeout(TIMEOUT)
        .retry(FixedRetry { retries: u32::MAX, delay: TIMEOUT * 2 / 5 })
        .service(handler);
    let call = service.start(request("p-1"));
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let (request, respond) = handle.next_request().await.unwrap();
        tokens.push(lock(&request).token());
        respond.send_error("gateway busy");
    }
    let result = call.await.unwrap();
    assert!(error::find::<Elapsed>(&*failed(&result).source).is_some());
    assert!(tokens.iter().all(|token| token == &tokens[0]));
    assert_eq!(harness.store.count("acquire"), 1);
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}
