//! Records that are started ahead of their turn.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, LostCause, Outcome, Record, Request, State};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::{OnLocked, OnMissingKey};
use campanile_test::faults::Fault;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
use tower::{Layer, service_fn};

use crate::harness::{
    CallResult, HOUR, Harness, TTL, TestService, exhausted, failed, failing_service, is_pending,
    layer_error, request, run_until_idle,
};

/// A request with a record that is started ahead of its turn.
fn request_ahead(id: &str) -> (Request<()>, Record) {
    let request = request(id);
    let record = request.record().clone();
    record.attempt().start(true);
    (request, record)
}

fn operations(harness: &Harness) -> Vec<&'static str> {
    harness.store.commands().iter().map(|command| command.operation.name()).collect()
}

/// Starts a record ahead of its turn, whose lock is lost before its turn comes.
async fn lose_lock_ahead(
    harness: &Harness,
    service: &impl TestService<&'static str>,
) -> (JoinHandle<CallResult>, Record) {
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    harness.store.inject_always_of("renew", Fault::Refuse);
    sleep(HOUR).await;
    harness.store.heal();
    (call, record)
}

#[tokio::test(start_paused = true)]
async fn time_before_the_turn_is_not_taken_from_max_hold() {
    let harness = Harness::new();
    let max_hold = 10 * TTL;
    let layer = harness.layer_with(|config| config.with_max_hold(max_hold));
    let (service, mut handle) = harness.mock_service(layer);
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    sleep(max_hold - TTL).await;
    record.attempt().begin_turn();
    let (request, _respond) = handle.next_request().await.unwrap();
    let began = Instant::now();
    let lost = request.lock().unwrap().lost().await;
    assert_eq!(lost.cause, LostCause::MaxHold);
    let held = began.elapsed();
    assert!((max_hold..max_hold + Duration::from_millis(2)).contains(&held), "{held:?}");
    assert!(call.await.unwrap().is_err());
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn lock_held_for_max_hold_ahead_of_its_turn_is_acquired_again() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_hold(TTL));
    let (service, mut handle) = harness.mock_service(layer);
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    sleep(HOUR).await;
    record.attempt().begin_turn();
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(request.lock().unwrap().attempt(), 1);
    respond.send_response("done");
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
    harness.assert_settled().await;
}

/// Responds to the next call of the handler.
async fn respond_to_call(handle: &mut crate::harness::MockHandle) {
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
}

async fn outcome_of(call: JoinHandle<CallResult>) -> Outcome<&'static str> {
    call.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn record_ahead_acquires_its_lock_early_and_runs_in_its_turn() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    assert_eq!(harness.state("p-1"), Some(State::Processing));
    record.attempt().begin_turn();
    respond_to_call(&mut handle).await;
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
    assert_eq!(operations(&harness), ["acquire", "complete"]);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn record_dropped_ahead_of_its_turn_counts_no_attempt() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    call.abort();
    record.attempt().lock_released().await;
    run_until_idle().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 0));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn lock_lost_ahead_of_its_turn_is_acquired_again() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let (call, record) = lose_lock_ahead(&harness, &service).await;
    record.attempt().begin_turn();
    respond_to_call(&mut handle).await;
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
    assert_eq!(harness.store.count("acquire"), 2);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn lock_to_give_up_lost_ahead_of_its_turn_is_acquired_again() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let result = failing_service(&layer, || "declined".into()).run("p-1").await;
    failed(&result).take_lock().unwrap().fail().await.unwrap();
    drop(result);
    sleep(HOUR).await;
    let (service, _handle) = harness.mock_service(layer);
    let (call, record) = lose_lock_ahead(&harness, &service).await;
    record.attempt().begin_turn();
    let result = call.await.unwrap();
    let lock = exhausted(&result).take_lock().unwrap();
    assert!(lock.lock_handle().check().is_ok());
    lock.give_up("declined").await.unwrap();
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn release_of_a_lost_lock_takes_nothing_from_the_wait_for_another_owner() {
    let harness = Harness::new();
    let other = harness.other_process();
    let wait = OnLocked::Wait { at_most: Duration::from_secs(1) };
    let (service, _handle) = harness.mock_service(harness.layer().on_locked(wait));
    let (call, record) = lose_lock_ahead(&harness, &service).await;
    let (service, mut handle) = other.mock_service(other.layer());
    let owner = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_next_of("release", Fault::Slow(Duration::from_secs(2)));
    record.attempt().begin_turn();
    sleep(Duration::from_millis(2_500)).await;
    respond.send_response("done");
    assert_eq!(outcome_of(owner).await, Outcome::Processed("done"));
    assert!(outcome_of(call).await.is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn release_that_is_not_answered_delays_no_longer_than_a_call() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    harness.store.inject_always(Fault::Refuse);
    sleep(HOUR).await;
    record.attempt().begin_turn();
    let begun = Instant::now();
    let result = call.await.unwrap();
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { .. }), "{result:?}");
    assert!(begun.elapsed() <= TTL / 6 + Duration::from_millis(2), "{:?}", begun.elapsed());
    assert_eq!(harness.entry("p-1").unwrap().attempt(), 1, "it is that of the lock");
}

#[tokio::test(start_paused = true)]
async fn completion_and_next_acquire_share_one_batch() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let first = request("p-1");
    let record = first.record().clone();
    let first = service.start(first);
    let (_, respond) = handle.next_request().await.unwrap();
    assert!(!record.attempt().is_recording());
    harness.store.forget_calls();
    respond.send_response("done");
    let (next, _) = request_ahead("p-2");
    let next = service.start(next);
    assert_eq!(outcome_of(first).await, Outcome::Processed("done"));
    assert!(record.attempt().is_recording());
    assert!(is_pending(&next).await);
    let calls = harness.store.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(operations(&harness), ["complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn record_ahead_with_key_of_previous_record_is_duplicate() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let first = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    // The lock is held by the record before it.
    let (request, record) = request_ahead("p-1");
    let second = service.start(request);
    assert!(is_pending(&second).await);
    respond.send_response("done");
    assert_eq!(outcome_of(first).await, Outcome::Processed("done"));
    assert!(is_pending(&second).await);
    record.attempt().begin_turn();
    assert!(outcome_of(second).await.is_duplicate());
    assert!(record.attempt().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn record_ahead_without_key_waits_for_its_turn() {
    let harness = Harness::new();
    let layer = harness.layer().on_missing_key(OnMissingKey::PassThrough);
    let (service, mut handle) = harness.mock_service(layer);
    let record = Record::builder("payments", 0, 0).build();
    record.attempt().start(true);
    let call = service.start(Request::new(record.clone(), ()));
    assert!(is_pending(&call).await);
    record.attempt().begin_turn();
    respond_to_call(&mut handle).await;
    assert!(matches!(outcome_of(call).await, Outcome::WithoutLock("done", _)));
    assert_eq!(operations(&harness), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn record_ahead_that_fails_open_waits_for_its_turn() {
    let harness = Harness::new();
    let (service, mut handle) =
        harness.mock_service(harness.layer().with_fail_open_risking_duplicates(|_, _| true));
    harness.store.inject_always(Fault::Refuse);
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    record.attempt().begin_turn();
    respond_to_call(&mut handle).await;
    assert!(matches!(outcome_of(call).await, Outcome::WithoutLock("done", _)));
}

#[tokio::test(start_paused = true)]
async fn record_ahead_with_failed_acquire_acquires_again_in_its_turn() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    harness.store.inject_next_of("acquire", Fault::Refuse);
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    record.attempt().begin_turn();
    respond_to_call(&mut handle).await;
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn record_ahead_of_its_turn_keeps_no_permit() {
    let harness = Harness::new();
    let limited = ConcurrencyLimitLayer::new(1)
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    let service = harness.layer().layer(limited);
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    assert_eq!(service.run("p-2").await.unwrap(), Outcome::Processed("done"));
    record.attempt().begin_turn();
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn running_handler_is_reported_to_driver() {
    let harness = Harness::new();
    let layer = harness.layer().on_missing_key(OnMissingKey::PassThrough);
    let (service, mut handle) = harness.mock_service(layer);
    let with_key = request("p-1");
    let without_key = Request::new(Record::builder("payments", 0, 0).build(), ());
    for request in [with_key, without_key] {
        let record = request.record().clone();
        let call = service.start(request);
        let (_, respond) = handle.next_request().await.unwrap();
        assert!(is_pending(&call).await);
        assert!(record.attempt().is_processing());
        respond.send_response("done");
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_permit_in_its_turn_is_reported_to_driver() {
    let harness = Harness::new();
    let permits = Arc::new(Semaphore::new(1));
    let limited = GlobalConcurrencyLimitLayer::with_semaphore(permits.clone())
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    let (request, record) = request_ahead("p-1");
    let call = harness.layer().layer(limited).start(request);
    assert!(is_pending(&call).await);
    assert!(record.attempt().is_ahead());
    let permit = permits.acquire().await.unwrap();
    record.attempt().begin_turn();
    assert!(is_pending(&call).await);
    assert!(record.attempt().is_processing());
    drop(permit);
    assert_eq!(outcome_of(call).await, Outcome::Processed("done"));
}

/// Middleware in front of the layer has spawned its future.
#[tokio::test(start_paused = true)]
async fn end_of_cancelled_attempt_does_not_begin_the_next_turn() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    let (request, record) = request_ahead("p-1");
    let call = service.start(request);
    assert!(is_pending(&call).await);
    record.attempt().set_interrupted();
    call.await.unwrap().unwrap_err();
    assert!(record.attempt().is_ahead());
}

#[tokio::test(start_paused = true)]
async fn wait_for_lock_is_reported_to_driver() {
    let harness = Harness::new();
    let layer = harness.layer().on_locked(OnLocked::Wait { at_most: Duration::from_secs(1) });
    let (service, mut handle) = harness.mock_service(layer);
    let first = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let waiting = request("p-1");
    let record = waiting.record().clone();
    let second = service.start(waiting);
    assert!(is_pending(&second).await);
    assert!(record.attempt().is_processing());
    respond.send_response("done");
    assert_eq!(outcome_of(first).await, Outcome::Processed("done"));
    assert!(outcome_of(second).await.is_duplicate());
    assert!(record.attempt().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn failure_is_reported_to_driver() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let request = request("p-1");
    let record = request.record().clone();
    let call = service.start(request);
    let (_, respond) = handle.next_request().await.unwrap();
    assert!(record.attempt().is_processing());
    record.attempt().start(false);
    respond.send_error(std::io::Error::other("refused"));
    call.await.unwrap().unwrap_err();
    assert!(record.attempt().is_processing());
}
