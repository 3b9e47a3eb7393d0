//! Retry and time-out, both on the same side of the layer.

use std::time::Duration;

use campanile_core::{Outcome, State, error};
use campanile_idempotency::WaitForLock;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower::timeout::error::Elapsed;

use super::run::{Again, LIMIT, stage};
use crate::world::{Guarding, HOUR, World, failed, lock, request};

#[tokio::test(start_paused = true)]
async fn retry_timeout_idempotency_is_a_budget_for_each_attempt() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        // after the back-off
        .retry(Again { left: 1, after: HOUR })
        .timeout(LIMIT)
        .layer(world.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let (first, _respond) = stage.next_request().await.unwrap();
    let (second, respond) = stage.next_request().await.unwrap();
    assert!(lock(&first).check().is_err());
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert_eq!((lock(&first).attempt(), lock(&second).attempt()), (1, 2));
    assert!(lock(&second).token() > lock(&first).token());
}

#[tokio::test(start_paused = true)]
async fn retry_timeout_idempotency_is_not_locked_out_by_the_attempt_that_it_dropped() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        // at once
        .retry(Again { left: 1, after: Duration::ZERO })
        .timeout(LIMIT)
        // until the drop is settled, and then for the back-off
        .retry(WaitForLock::new(LIMIT))
        .layer(world.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    let start = Instant::now();
    let (second, respond) = stage.next_request().await.unwrap();
    // The longest first back-off is a second.
    assert!(start.elapsed() <= LIMIT + Duration::from_millis(1100), "{:?}", start.elapsed());
    assert_eq!(lock(&second).attempt(), 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn idempotency_timeout_retry_is_a_budget_for_all_repeats_under_one_lock() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .timeout(LIMIT)
        .retry(Again { left: u32::MAX, after: LIMIT * 2 / 5 })
        .service(handler);
    let call = service.start(request("p-1"));
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let (request, respond) = stage.next_request().await.unwrap();
        tokens.push(lock(&request).token());
        respond.send_error("gateway busy");
    }
    let called = call.await.unwrap();
    assert!(error::find::<Elapsed>(&*failed(&called).source).is_some());
    assert!(tokens.iter().all(|token| token == &tokens[0]));
    assert_eq!(world.store.count("acquire"), 1);
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}
