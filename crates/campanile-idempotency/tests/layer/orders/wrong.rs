//! What must not be inside the layer, and what comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use campanile_core::{BoxError, Lock, Outcome, Request, State};
use campanile_idempotency::IdempotencyError;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tower::hedge::{Hedge, Policy};
use tower::{ServiceBuilder, service_fn};

use super::run::{LIMIT, stage};
use crate::world::{Guarding, HOUR, Handler, TTL, World, lock, refusal, request};

/// Sends everything a second time.
#[derive(Clone)]
struct Twice;

impl Policy<Request<()>> for Twice {
    fn clone_request(&self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }

    fn can_retry(&self, _: &Request<()>) -> bool {
        true
    }
}

/// Work that a handler spawns is not dropped with it. Only a receiver that compares tokens is safe.
#[tokio::test(start_paused = true)]
async fn what_is_spawned_inside_goes_on_beside_the_next_attempt_whose_token_is_greater() {
    let world = World::new();
    let at_work = Arc::new(AtomicUsize::new(0));
    let counted = at_work.clone();
    let (locks, mut seen) = mpsc::unbounded_channel::<Lock>();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        // drops the handler, and not what it has spawned
        .timeout(LIMIT)
        .service(service_fn(move |request: Request<()>| {
            let (at_work, locks) = (counted.clone(), locks.clone());
            let work = tokio::spawn(async move {
                locks.send(lock(&request)).unwrap();
                at_work.fetch_add(1, Ordering::Relaxed);
                sleep(HOUR * 2).await;
                at_work.fetch_sub(1, Ordering::Relaxed);
            });
            async move { Ok::<_, BoxError>(work.await?) }
        }));
    service.run("p-1").await.unwrap_err();
    let first = seen.recv().await.unwrap();
    sleep(HOUR).await;
    assert!(first.check().is_err(), "its lock's time is over");
    let call = service.start(request("p-1"));
    let second = seen.recv().await.unwrap();
    assert_eq!(at_work.load(Ordering::Relaxed), 2);
    assert!(second.check().is_ok() && second.token() > first.token());
    call.await.unwrap().unwrap_err();
}

/// tower's hedge is not `Clone`, so that it does not compile inside the layer without a buffer. With
/// one, nothing tells its two runs apart.
#[tokio::test(start_paused = true)]
async fn a_hedge_inside_runs_twice_under_one_token() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .buffer(4)
        .service(Hedge::new_with_mock_latencies(handler, Twice, 0, 0.5, HOUR, &[1]));
    let call = service.start(request("p-1"));
    let (one, _one) = stage.next_request().await.unwrap();
    let (other, respond) = stage.next_request().await.unwrap();
    assert!(lock(&one).check().is_ok() && lock(&other).check().is_ok());
    assert_eq!(lock(&one).token(), lock(&other).token());
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// The second is refused, and its refusal is the answer: the first is dropped at its work.
#[tokio::test(start_paused = true)]
async fn a_hedge_around_drops_the_first_run_for_the_refusal_of_the_second() {
    let world = World::new();
    let (handler, mut stage): (Handler, _) = stage();
    let guarded = ServiceBuilder::new().layer(world.layer()).service(handler);
    let hedge = Hedge::new_with_mock_latencies(guarded, Twice, 0, 0.5, HOUR, &[1]);
    let service = ServiceBuilder::new().buffer(4).service(hedge);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    let called = call.await.unwrap();
    assert!(matches!(refusal(&called), IdempotencyError::Locked { .. }));
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

/// As tower-http's time-out does, which answers 408.
#[tokio::test(start_paused = true)]
async fn a_failure_that_is_turned_into_a_response_inside_is_recorded_as_success() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .map_result(|answer: Result<_, BoxError>| Ok::<_, BoxError>(answer.unwrap_or("408")))
        .timeout(LIMIT)
        .service(handler);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("408"));
    assert_eq!(world.state("p-1"), Some(State::Completed));
    sleep(TTL).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate(), "and it is never tried again");
}
