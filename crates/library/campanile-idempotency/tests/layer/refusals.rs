//! Requests that are refused without running their handler.

use std::time::Duration;

use campanile_core::{Answer, BoxError, Command, Outcome, Reply, Request, State, key};
use campanile_idempotency::{
    IdempotencyError, IdempotencyLayer, LockKeeper, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use campanile_test::faults::Fault;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_test::mock;

use crate::harness::{
    Harness, MockHandle, MockHandler, TTL, TestService, fingerprint_layer, is_pending, layer_error,
    lock, request, request_with_payload,
};

/// A handler that must not run.
async fn unreachable_handler(_: Request<()>) -> Result<(), BoxError> {
    unreachable!("the handler must not run")
}

#[tokio::test(start_paused = true)]
async fn request_without_key_is_refused() {
    let harness = Harness::new();
    let result = harness.layer().layer(service_fn(unreachable_handler)).run("").await;
    assert!(matches!(layer_error(&result), IdempotencyError::MissingKey));
    assert_eq!(harness.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn invalid_key_is_refused_with_extractor_error() {
    let harness = Harness::new();
    let no_key = |_: &Request<()>| Err::<String, _>("not a number");
    let panics = |_: &Request<()>| -> String { panic!("test panic") };
    let layer = IdempotencyLayer::new(&harness.keeper, "payments", no_key).unwrap();
    let result = layer.layer(service_fn(unreachable_handler)).run("p-1").await;
    let IdempotencyError::InvalidKey(error) = layer_error(&result) else {
        panic!("expected an invalid key");
    };
    assert_eq!(error.to_string(), "not a number");

    let layer = IdempotencyLayer::new(&harness.keeper, "payments", panics).unwrap();
    let result = layer.layer(service_fn(unreachable_handler)).run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::InvalidKey(_)));
    assert_eq!(harness.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn key_held_in_process_is_refused_locally_with_settled_signal() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let holder = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.forget_calls();

    let result = service.run("p-1").await;
    let IdempotencyError::Locked { retry_after, settled, key } = layer_error(&result) else {
        panic!("expected a locked key");
    };
    assert_eq!((key.as_bytes(), *retry_after), (&b"p-1"[..], TTL));
    assert_eq!(harness.store.commands(), []);
    assert!(layer_error(&result).is_contention());

    let mut settled = tokio_test::task::spawn(settled.clone().unwrap());
    tokio_test::assert_pending!(settled.poll());
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    tokio_test::assert_ready!(settled.poll());
}

#[tokio::test(start_paused = true)]
async fn key_held_by_other_process_is_refused_with_retry_time() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (service, mut handle) = other_process.mock_service(other_process.layer());
    let _holder = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();

    let before = harness.entry("p-1");
    let result = harness.layer().layer(service_fn(unreachable_handler)).run("p-1").await;
    let IdempotencyError::Locked { retry_after, settled: None, .. } = layer_error(&result) else {
        panic!("expected a key locked by another process");
    };
    // The holder may end long before its lock expires.
    let expected = TTL / 3;
    assert!((expected * 9 / 10..=expected * 11 / 10).contains(retry_after), "{retry_after:?}");
    assert_eq!(harness.entry("p-1"), before, "a refusal writes nothing");
}

#[tokio::test(start_paused = true)]
async fn failed_key_is_refused_until_end_of_backoff() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_error("gateway busy");
    let failed = call.await.unwrap();
    let IdempotencyError::AttemptFailed(failure) = layer_error(&failed) else {
        panic!("expected a failed attempt");
    };
    let back_off = failure.retry_after.unwrap();
    assert_eq!((failure.attempt, failure.source.to_string()), (1, "gateway busy".into()));

    let result = service.run("p-1").await;
    let IdempotencyError::BackingOff { retry_after, attempts: 1, .. } = layer_error(&result) else {
        panic!("expected a key in backoff");
    };
    assert!(*retry_after <= back_off);
    tokio::time::sleep(back_off).await;
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 2);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn key_with_other_payload_is_refused() {
    let harness = Harness::new();
    let service = fingerprint_layer(&harness);
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap();
    let result = service.start(request_with_payload("p-1", "999")).await.unwrap();
    assert!(matches!(layer_error(&result), IdempotencyError::Mismatch { .. }));
    assert!(
        service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap().is_duplicate()
    );
    assert_eq!(harness.entry("p-1").unwrap().attempt(), 1);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn request_without_store_is_refused_and_not_counted() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    harness.store.inject_always(Fault::Refuse);
    for _ in 0..20 {
        let result = service.run("p-1").await;
        let IdempotencyError::Store(error) = layer_error(&result) else {
            panic!("expected a store error");
        };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert_eq!(layer_error(&result).retry_after(), None);
    }
    harness.store.heal();
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_entry_is_refused_and_not_treated_as_absent() {
    let (keeper, task) = LockKeeper::pair(CorruptStore, TestClock::new().keeper_clock());
    tokio::spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap();
    let result = layer.layer(service_fn(unreachable_handler)).run("p-1").await;
    let IdempotencyError::Store(error) = layer_error(&result) else {
        panic!("expected a store error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}

#[tokio::test(start_paused = true)]
async fn unreadable_entry_never_fails_open() {
    let (keeper, task) = LockKeeper::pair(CorruptStore, TestClock::new().keeper_clock());
    tokio::spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap();
    let layer = layer.with_fail_open_risking_duplicates(|_, _| true);
    let result = layer.layer(service_fn(unreachable_handler)).run("p-1").await;
    let IdempotencyError::Store(error) = layer_error(&result) else {
        panic!("expected a store error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}

/// A store with an unreadable entry under every key.
#[derive(Clone)]
struct CorruptStore;

impl Store for CorruptStore {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        let now = std::time::SystemTime::UNIX_EPOCH;
        Ok(Answer::new(now, Reply::Corrupt))
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_new_locks_and_waits_for_held_ones() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    assert!(!harness.keeper.shutdown(Duration::from_secs(5)).await.settled);

    let result = service.run("p-2").await;
    assert!(matches!(layer_error(&result), IdempotencyError::ShuttingDown));
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert!(harness.keeper.shutdown(Duration::from_millis(1)).await.settled);
    assert_eq!(harness.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn request_without_keeper_is_refused() {
    let mut harness = Harness::new();
    let service = harness.layer().layer(service_fn(unreachable_handler));
    harness.crash().await;
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Store(_)));
    assert!(!harness.keeper.shutdown(Duration::from_secs(1)).await.settled);
}

#[tokio::test(start_paused = true)]
async fn duplicate_releases_inner_permit() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .concurrency_limit(1)
        .service_fn(async |_: Request<()>| Ok::<_, BoxError>(()));
    for _ in 0..3 {
        service.run("p-1").await.unwrap();
    }
    // Refusals do not keep the permit either.
    for _ in 0..3 {
        service.run("").await.unwrap_err();
    }
    service.run("p-2").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_is_acquired_only_after_inner_readiness() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    handle.allow(0);
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    assert_eq!(harness.store.commands(), [], "readiness first, lock second");
    handle.allow(1);
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn inner_readiness_error_is_returned_unchanged() {
    let harness = Harness::new();
    let (handler, handle): (MockHandler, MockHandle) = mock::pair();
    let mut service = harness.layer().layer(handler);
    drop(handle);
    let error = service.ready().await.err().unwrap();
    assert!(IdempotencyError::find(&*error).is_none(), "{error}");
    assert_eq!(harness.store.commands(), []);
}
