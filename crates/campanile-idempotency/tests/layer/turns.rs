//! Records that are started ahead of their turn.

use campanile_core::{BoxError, Outcome, Record, Request, State};
use campanile_idempotency::policy::OnMissingKey;
use campanile_test::faults::Fault;
use tokio::task::JoinHandle;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, service_fn};

use crate::world::{Called, Guarding, World, is_pending, request, settle_down};

/// A request whose record is started ahead of its turn.
fn ahead(id: &str) -> (Request<()>, Record) {
    let request = request(id);
    let record = request.record().clone();
    record.start(true);
    (request, record)
}

fn words(world: &World) -> Vec<&'static str> {
    world.store.commands().iter().map(|command| command.operation.name()).collect()
}

/// Plays the handler of a call that must be there.
async fn handles(stage: &mut crate::world::Stage) {
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
}

async fn answered(call: JoinHandle<Called>) -> Outcome<&'static str> {
    call.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn record_ahead_of_its_turn_acquires_its_lock_and_runs_when_its_turn_comes() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let (request, record) = ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    assert_eq!(world.state("p-1"), Some(State::Processing));
    record.begin_turn();
    handles(&mut stage).await;
    assert_eq!(answered(call).await, Outcome::Processed("done"));
    assert_eq!(words(&world), ["acquire", "complete"]);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn record_dropped_ahead_of_its_turn_counts_no_attempt() {
    let world = World::new();
    let (service, _stage) = world.staged(world.layer());
    let (request, record) = ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    call.abort();
    record.let_go().await;
    settle_down().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 0));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn outcome_and_the_next_lock_travel_together() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let first = request("p-1");
    let record = first.record().clone();
    let first = service.start(first);
    let (_, respond) = stage.next_request().await.unwrap();
    assert!(!record.is_recording());
    world.store.forget_calls();
    respond.send_response("done");
    let (next, _) = ahead("p-2");
    let next = service.start(next);
    assert_eq!(answered(first).await, Outcome::Processed("done"));
    assert!(record.is_recording());
    assert!(is_pending(&next).await);
    let calls = world.store.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(words(&world), ["complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn record_ahead_with_the_key_of_the_one_before_it_is_a_duplicate() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let first = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    // Its lock is taken: by the record before it.
    let (request, record) = ahead("p-1");
    let second = service.start(request);
    assert!(is_pending(&second).await);
    respond.send_response("done");
    assert_eq!(answered(first).await, Outcome::Processed("done"));
    assert!(is_pending(&second).await);
    record.begin_turn();
    assert!(answered(second).await.is_duplicate());
    assert!(record.is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn record_ahead_without_a_key_waits_for_its_turn_as_well() {
    let world = World::new();
    let layer = world.layer().with_missing_key(OnMissingKey::PassThrough);
    let (service, mut stage) = world.staged(layer);
    let record = Record::builder("payments", 0, 0).build();
    record.start(true);
    let call = service.start(Request::new(record.clone(), ()));
    assert!(is_pending(&call).await);
    record.begin_turn();
    handles(&mut stage).await;
    assert!(matches!(answered(call).await, Outcome::Unguarded("done", _)));
    assert_eq!(words(&world), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn record_ahead_that_fails_open_waits_for_its_turn_as_well() {
    let world = World::new();
    let (service, mut stage) =
        world.staged(world.layer().with_fail_open_risking_duplicates(|_, _| true));
    world.store.always(Fault::Refuse);
    let (request, record) = ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    record.begin_turn();
    handles(&mut stage).await;
    assert!(matches!(answered(call).await, Outcome::Unguarded("done", _)));
}

#[tokio::test(start_paused = true)]
async fn record_ahead_whose_acquire_failed_acquires_again_when_its_turn_comes() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    world.store.next_of("acquire", Fault::Refuse);
    let (request, record) = ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    record.begin_turn();
    handles(&mut stage).await;
    assert_eq!(answered(call).await, Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn record_ahead_of_its_turn_keeps_no_permit() {
    let world = World::new();
    let limited = ConcurrencyLimitLayer::new(1)
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    let service = world.layer().layer(limited);
    let (request, record) = ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    assert_eq!(service.run("p-2").await.unwrap(), Outcome::Processed("done"));
    record.begin_turn();
    assert_eq!(answered(call).await, Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn failure_is_told_to_the_driver() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let request = request("p-1");
    let record = request.record().clone();
    let call = service.start(request);
    let (_, respond) = stage.next_request().await.unwrap();
    assert!(!record.has_failed());
    respond.send_error(std::io::Error::other("refused"));
    call.await.unwrap().unwrap_err();
    assert!(record.has_failed());
}
