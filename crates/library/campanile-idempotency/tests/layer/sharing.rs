//! Several layers of one keeper, several keepers of one store, and namespaces.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Request, State, key};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{HOUR, Harness, TTL, TestService, is_pending, layer_error, lock, request};

#[tokio::test(start_paused = true)]
async fn layers_of_one_keeper_exclude_each_other() {
    let harness = Harness::new();
    let (one, mut handle) = harness.mock_service(harness.layer());
    let (other, _never) =
        harness.mock_service(harness.layer_with(|config| config.with_lock_ttl(TTL * 2)));
    let call = one.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let result = other.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { settled: Some(_), .. }));
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(other.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn layers_of_one_keeper_have_own_lock_ttl() {
    let harness = Harness::new();
    let brief = Duration::from_secs(2);
    let (one, mut handle) = harness.mock_service(harness.layer());
    let (other, mut brief_handle) =
        harness.mock_service(harness.layer_with(|config| config.with_lock_ttl(brief)));
    let calls = [one.start(request("long")), other.start(request("brief"))];
    let (long, respond) = handle.next_request().await.unwrap();
    let (brief, respond_brief) = brief_handle.next_request().await.unwrap();
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        assert!(lock(&long).check().is_ok());
        assert!(lock(&brief).check().is_ok());
        assert!(lock(&brief).remaining() < Duration::from_secs(2));
        assert!(lock(&long).remaining() > TTL / 2);
    }
    respond.send_response("done");
    respond_brief.send_response("done");
    for call in calls {
        call.await.unwrap().unwrap();
    }
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn keepers_of_one_store_exclude_each_other() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (here, mut handle) = harness.mock_service(harness.layer());
    let (there, mut other_handle) = other_process.mock_service(other_process.layer());
    let call = here.start(request("p-1"));
    let (held, respond) = handle.next_request().await.unwrap();
    for _ in 0..20 {
        sleep(TTL / 4).await;
        assert!(layer_error(&there.run("p-1").await).is_contention());
    }
    assert!(lock(&held).check().is_ok());
    respond.send_error("gateway busy");
    call.await.unwrap().unwrap_err();
    sleep(HOUR).await;
    let call = there.start(request("p-1"));
    let (taken, respond) = other_handle.next_request().await.unwrap();
    assert_eq!(lock(&taken).attempt(), 2);
    assert!(lock(&taken).token() > lock(&held).token());
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(here.run("p-1").await.unwrap().is_duplicate());
    harness.assert_settled().await;
    other_process.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn lock_of_dead_process_is_taken_over_only_after_expiration() {
    let harness = Harness::new();
    let mut dying = harness.other_process();
    let (there, mut handle) = dying.mock_service(dying.layer());
    let _call = there.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    sleep(TTL * 2).await; // the lock is renewed meanwhile
    let expires = harness.entry("p-1").unwrap().at();
    dying.crash().await;

    let (here, mut handle) = harness.mock_service(harness.layer());
    while harness.clock.now() < expires - Duration::from_millis(200) {
        assert!(layer_error(&here.run("p-1").await).is_contention());
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_millis(200)).await;
    let call = here.start(request("p-1"));
    let (taken, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&taken).attempt(), 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// Otherwise each of two consumer groups would drop the other's events as duplicates.
#[tokio::test(start_paused = true)]
async fn same_key_in_other_namespace_is_another_key() {
    let harness = Harness::new();
    let service = |namespace: &str| {
        let layer = IdempotencyLayer::new(&harness.keeper, namespace, key::header("id"));
        layer.unwrap().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())))
    };
    for namespace in ["payments", "refunds", "payments.v2"] {
        assert_eq!(service(namespace).run("p-1").await.unwrap(), Outcome::Processed(()));
        assert!(service(namespace).run("p-1").await.unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_namespace_is_rejected() {
    let harness = Harness::new();
    for name in ["", "Payments", "pay ments", "{payments}", &"p".repeat(65)] {
        let layer = IdempotencyLayer::new(&harness.keeper, name, key::header("id"));
        assert!(layer.is_err(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn service_clones_share_locks() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.clone().start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    assert!(layer_error(&service.clone().run("p-1").await).is_contention());
    assert!(is_pending(&call).await);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert_eq!(harness.state("p-1"), Some(State::Completed));
}
