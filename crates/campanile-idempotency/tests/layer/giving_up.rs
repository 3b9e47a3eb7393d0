//! Keys that get no further attempt.

use campanile_core::{BoxError, Disposition, FencingToken, Outcome, Reply, Request, State, error};
use campanile_idempotency::policy::OnGivenUp;
use campanile_idempotency::{IdempotencyError, Store};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{
    Guarding, HOUR, TTL, World, exhausted, failed, failing, lock, refusal, request, settle_down,
    store_key,
};

#[tokio::test(start_paused = true)]
async fn the_lock_of_what_is_given_up_is_handed_over_once_and_rejected_after_the_dead_letter() {
    let world = World::new();
    let service = failing(&world.layer(), || error::permanent("no such account").into());
    let called = service.run("p-1").await;
    let failure = failed(&called);
    assert_eq!((failure.disposition, failure.retry_after), (Disposition::DeadLetter, None));
    let lock = failure.take_lock().unwrap();
    assert!(failure.take_lock().is_none(), "once");

    // It takes its time to publish, and the lock is renewed meanwhile.
    sleep(TTL * 3).await;
    assert!(lock.lock().check().is_ok());
    assert!(refusal(&service.run("p-1").await).is_contention());
    lock.reject("published").await.unwrap();
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.error().as_deref()), (State::Failed, Some("published")));
    let Outcome::Parked(parked) = service.run("p-1").await.unwrap() else {
        panic!("parked");
    };
    assert_eq!((parked.attempts, parked.error.as_deref()), (1, Some("published")));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_rejection_without_a_reason_keeps_the_handlers_error() {
    let world = World::new();
    let layer = world.layer().with_max_attempts(2).unwrap();
    let service = failing(&layer, || "gateway busy".into());
    service.run("p-1").await.unwrap_err();
    sleep(HOUR).await;
    let called = service.run("p-1").await;
    failed(&called).take_lock().unwrap().reject("").await.unwrap();
    assert_eq!(world.entry("p-1").unwrap().error().as_deref(), Some("gateway busy"));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_nobody_takes_counts_as_the_failed_attempt_and_never_as_failed_for_good() {
    let world = World::new();
    let service = failing(&world.layer(), || error::permanent("no such account").into());
    let called = service.run("p-1").await;
    settle_down().await;
    assert_eq!(world.state("p-1"), Some(State::Processing), "as long as the error lives");
    drop(called);
    settle_down().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("permanent error: no such account"));

    // No further attempt would mend it: the next delivery gets the lock for its dead letter.
    sleep(HOUR).await;
    let called = service.run("p-1").await;
    let burial = exhausted(&called);
    assert_eq!((burial.attempts, burial.burials), (1, 1));
    assert_eq!(burial.last_error.as_deref(), Some("permanent error: no such account"));
    burial.take_lock().unwrap().reject("").await.unwrap();
    assert_eq!(world.state("p-1"), Some(State::Failed));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_last_attempt_that_failed_may_be_tried_again_with_more_attempts() {
    let world = World::new();
    let layer = world.layer().with_max_attempts(1).unwrap();
    let called = failing(&layer, || "gateway busy".into()).run("p-1").await;
    assert_eq!(failed(&called).disposition, Disposition::DeadLetter);
    drop(called);
    sleep(HOUR).await;
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// A record that brings its process down fails no attempt. They were counted when they began.
#[tokio::test(start_paused = true)]
async fn a_key_whose_processes_crash_runs_out_of_attempts() {
    let outside = World::new();
    for attempt in 1..=3 {
        let mut world = outside.neighbour();
        let (service, mut stage) = world.staged(world.layer().with_max_attempts(3).unwrap());
        let _call = service.start(request("p-1"));
        let (request, _respond) = stage.next_request().await.unwrap();
        assert_eq!(request.lock().unwrap().attempt(), attempt);
        world.crash().await;
        sleep(TTL).await; // the lock outlives the process, but not by more than this
    }
    for burials in 1..=2 {
        let mut world = outside.neighbour();
        let (service, _stage) = world.staged(world.layer().with_max_attempts(3).unwrap());
        let called = service.run("p-1").await;
        let burial = exhausted(&called);
        assert_eq!((burial.attempts, burial.burials), (3, burials));
        assert_eq!(burial.last_error, None, "nobody was left to tell one");
        world.crash().await;
        sleep(TTL).await;
    }
    let (service, _stage) = outside.staged(outside.layer().with_max_attempts(3).unwrap());
    let called = service.run("p-1").await;
    let lock = exhausted(&called).take_lock().unwrap();
    assert!(exhausted(&called).take_lock().is_none(), "once");
    lock.reject("published").await.unwrap();
    assert!(matches!(service.run("p-1").await.unwrap(), Outcome::Parked(_)));
    outside.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_burial_lock_that_nobody_takes_is_let_go_and_comes_again() {
    let world = World::new();
    let layer = world.layer().with_max_attempts(1).unwrap();
    let service = failing(&layer, || "declined".into());
    drop(service.run("p-1").await);
    for _ in 0..3 {
        sleep(HOUR).await;
        let called = service.run("p-1").await;
        let burial = exhausted(&called);
        // None of them was interrupted.
        assert_eq!((burial.attempts, burial.burials), (1, 1));
        assert_eq!(burial.last_error.as_deref(), Some("declined"));
    }
    settle_down().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert!(!entry.is_released(), "the next comes after a back-off");
}

#[tokio::test(start_paused = true)]
async fn a_burial_lock_can_be_released_for_an_operator_to_look_at() {
    let world = World::new();
    let layer = world.layer().with_max_attempts(1).unwrap();
    let service = failing(&layer, || "declined".into());
    drop(service.run("p-1").await);
    sleep(HOUR).await;
    let called = service.run("p-1").await;
    exhausted(&called).take_lock().unwrap().release().await.unwrap();
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_last_attempt_that_is_released_hands_it_back_eight_times() {
    let world = World::new();
    let layer = world.layer().with_max_attempts(1).unwrap();
    let service = failing(&layer, || "declined".into());
    for released in 1..=9 {
        let called = service.run("p-1").await;
        failed(&called).take_lock().unwrap().release().await.unwrap();
        let entry = world.entry("p-1").unwrap();
        assert_eq!(entry.attempt(), u16::from(released > 8), "{released} times");
    }
    assert!(matches!(refusal(&service.run("p-1").await), IdempotencyError::Exhausted(_)));
}

#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_processed_again_once_its_key_is_reopened() {
    let world = World::new();
    let layer = world.layer().with_given_up(OnGivenUp::Reject).with_max_attempts(1).unwrap();
    failing(&layer, || "declined".into()).run("p-1").await.unwrap();
    let mended = layer.layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(lock(&request).attempt())
    }));
    assert!(matches!(mended.run("p-1").await.unwrap(), Outcome::Parked(_)));

    let token = world.entry("p-1").unwrap().token();
    let reopen = |token| world.memory.redrive(store_key("p-1"), token, false);
    assert_eq!(reopen(FencingToken::ZERO).await.unwrap(), Reply::Lost);
    assert_eq!(reopen(token).await.unwrap(), Reply::Reopened);
    assert_eq!(mended.run("p-1").await.unwrap(), Outcome::Processed(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_exhausted_is_parked_at_once_if_that_is_chosen() {
    let outside = World::new();
    let layer = |world: &World| {
        let layer = world.layer().with_given_up(OnGivenUp::Reject);
        layer.with_max_attempts(1).unwrap()
    };
    let mut world = outside.neighbour();
    let (service, mut stage) = world.staged(layer(&world));
    let _call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    world.crash().await;
    sleep(TTL).await;
    let (service, _stage) = outside.staged(layer(&outside));
    let Outcome::Parked(parked) = service.run("p-1").await.unwrap() else {
        panic!("parked");
    };
    assert_eq!((parked.attempts, parked.error), (1, None));
    assert_eq!(outside.state("p-1"), Some(State::Failed));
    outside.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_repeated_until_it_is_answered() {
    let world = World::new();
    let service = failing(&world.layer(), || error::permanent("no such account").into());
    let called = service.run("p-1").await;
    let lock = failed(&called).take_lock().unwrap();
    world.store.next_of("reject", Fault::LoseReply);
    world.store.next_of("reject", Fault::Refuse);
    lock.reject("published").await.unwrap();
    assert_eq!(world.store.count("reject"), 3);
    assert_eq!(world.state("p-1"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_that_was_overtaken_is_told_so_and_changes_nothing() {
    let world = World::new();
    let service = failing(&world.layer(), || error::permanent("no such account").into());
    let called = service.run("p-1").await;
    let lock = failed(&called).take_lock().unwrap();
    world.usurp("p-1").await;
    let before = world.entry("p-1");
    let lost = lock.reject("published").await.unwrap_err();
    assert!(matches!(lost, IdempotencyError::LockLost(_)), "{lost:?}");
    assert_eq!(world.entry("p-1"), before);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_takes_place_although_nobody_waits_for_it() {
    let world = World::new();
    let service = failing(&world.layer(), || error::permanent("no such account").into());
    let called = service.run("p-1").await;
    drop(failed(&called).take_lock().unwrap().reject("published"));
    settle_down().await;
    assert_eq!(world.state("p-1"), Some(State::Failed));
}
