//! What a request comes to when its handler does not run.

use std::time::Duration;

use campanile_core::{Answer, BoxError, Command, Outcome, Reply, Request, State, key};
use campanile_idempotency::{
    IdempotencyError, IdempotencyLayer, LockKeeper, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use campanile_test::faults::Fault;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_test::mock;

use crate::world::{
    Guarding, Handler, Stage, TTL, World, fingerprinting, is_pending, lock, paying, refusal,
    request,
};

/// Must not run.
async fn never(_: Request<()>) -> Result<(), BoxError> {
    unreachable!("the handler")
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_is_refused() {
    let world = World::new();
    let called = world.layer().layer(service_fn(never)).run("").await;
    assert!(matches!(refusal(&called), IdempotencyError::MissingKey));
    assert_eq!(world.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_key_is_refused_with_the_extractors_error() {
    let world = World::new();
    let no_key = |_: &Request<()>| Err::<String, _>("not a number");
    let panics = |_: &Request<()>| -> String { panic!("as extractors do") };
    let layer = IdempotencyLayer::new(&world.keeper, "payments", no_key).unwrap();
    let called = layer.layer(service_fn(never)).run("p-1").await;
    let IdempotencyError::InvalidKey(error) = refusal(&called) else {
        panic!("an invalid key");
    };
    assert_eq!(error.to_string(), "not a number");

    let layer = IdempotencyLayer::new(&world.keeper, "payments", panics).unwrap();
    let called = layer.layer(service_fn(never)).run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::InvalidKey(_)));
    assert_eq!(world.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_here_is_refused_without_a_command_and_tells_when_the_holder_ends() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let holder = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.forget_calls();

    let called = service.run("p-1").await;
    let IdempotencyError::Locked { retry_after, settled, key } = refusal(&called) else {
        panic!("locked");
    };
    assert_eq!((key.as_bytes(), *retry_after), (&b"p-1"[..], TTL));
    assert_eq!(world.store.commands(), []);
    assert!(refusal(&called).is_contention());

    let mut settled = tokio_test::task::spawn(settled.clone().unwrap());
    tokio_test::assert_pending!(settled.poll());
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    tokio_test::assert_ready!(settled.poll());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_elsewhere_is_refused_with_a_time_to_look_again() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (service, mut stage) = elsewhere.staged(elsewhere.layer());
    let _holder = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();

    let before = world.entry("p-1");
    let called = world.layer().layer(service_fn(never)).run("p-1").await;
    let IdempotencyError::Locked { retry_after, settled: None, .. } = refusal(&called) else {
        panic!("locked, by nobody of here");
    };
    // A holder may end long before its lock does.
    let third = TTL / 3;
    assert!((third * 9 / 10..=third * 11 / 10).contains(retry_after), "{retry_after:?}");
    assert_eq!(world.entry("p-1"), before, "a refusal writes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_attempt_failed_is_refused_until_its_back_off_is_over() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_error("gateway busy");
    let failed = call.await.unwrap();
    let IdempotencyError::Failed(failure) = refusal(&failed) else {
        panic!("failed");
    };
    let back_off = failure.retry_after.unwrap();
    assert_eq!((failure.attempt, failure.source.to_string()), (1, "gateway busy".into()));

    let called = service.run("p-1").await;
    let IdempotencyError::BackingOff { retry_after, attempts: 1, .. } = refusal(&called) else {
        panic!("backing off");
    };
    assert!(*retry_after <= back_off);
    tokio::time::sleep(back_off).await;
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 2);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_with_another_payload_is_refused() {
    let world = World::new();
    let service = fingerprinting(&world);
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    service.start(paying("p-1", "100")).await.unwrap().unwrap();
    let called = service.start(paying("p-1", "999")).await.unwrap();
    assert!(matches!(refusal(&called), IdempotencyError::Mismatch { .. }));
    assert!(service.start(paying("p-1", "100")).await.unwrap().unwrap().is_duplicate());
    assert_eq!(world.entry("p-1").unwrap().attempt(), 1);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_store_a_request_is_refused_and_nothing_is_counted() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    world.store.always(Fault::Refuse);
    for _ in 0..20 {
        let called = service.run("p-1").await;
        let IdempotencyError::Store(error) = refusal(&called) else {
            panic!("the store's error");
        };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert_eq!(refusal(&called).retry_after(), None);
    }
    world.store.heal();
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_read_is_refused_and_never_taken_for_absent() {
    let (keeper, task) = LockKeeper::unspawned(Garbage, TestClock::new().clock());
    tokio::spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap();
    let called = layer.layer(service_fn(never)).run("p-1").await;
    let IdempotencyError::Store(error) = refusal(&called) else {
        panic!("the store's error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_read_never_falls_open() {
    let (keeper, task) = LockKeeper::unspawned(Garbage, TestClock::new().clock());
    tokio::spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap();
    let layer = layer.with_fail_open_risking_duplicates(|_, _| true);
    let called = layer.layer(service_fn(never)).run("p-1").await;
    let IdempotencyError::Store(error) = refusal(&called) else {
        panic!("the store's error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}

/// Holds something else under every key.
#[derive(Clone)]
struct Garbage;

impl Store for Garbage {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        let now = std::time::SystemTime::UNIX_EPOCH;
        Ok(Answer::new(now, Reply::Corrupt))
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_shuts_down_takes_no_new_locks_and_waits_for_those_there_are() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    assert!(!world.keeper.shutdown(Duration::from_secs(5)).await.settled);

    let called = service.run("p-2").await;
    assert!(matches!(refusal(&called), IdempotencyError::ShuttingDown));
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert!(world.keeper.shutdown(Duration::from_millis(1)).await.settled);
    assert_eq!(world.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn without_its_keeper_a_request_is_refused() {
    let mut world = World::new();
    let service = world.layer().layer(service_fn(never));
    world.crash().await;
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Store(_)));
    assert!(!world.keeper.shutdown(Duration::from_secs(1)).await.settled);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_gives_the_inner_services_permit_back() {
    let world = World::new();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .concurrency_limit(1)
        .service_fn(async |_: Request<()>| Ok::<_, BoxError>(()));
    for _ in 0..3 {
        service.run("p-1").await.unwrap();
    }
    // Neither do refusals keep it.
    for _ in 0..3 {
        service.run("").await.unwrap_err();
    }
    service.run("p-2").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_lock_ticks_while_its_request_waits_to_be_let_in() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    stage.allow(0);
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    assert_eq!(world.store.commands(), [], "readiness first, lock second");
    stage.allow(1);
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_has_failed_is_told_as_it_is() {
    let world = World::new();
    let (handler, stage): (Handler, Stage) = mock::pair();
    let mut service = world.layer().layer(handler);
    drop(stage);
    let error = service.ready().await.err().unwrap();
    assert!(IdempotencyError::find(&*error).is_none(), "{error}");
    assert_eq!(world.store.commands(), []);
}
