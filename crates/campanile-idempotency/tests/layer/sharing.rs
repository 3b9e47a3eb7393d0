//! Layers of one keeper, keepers of one store, and namespaces.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Request, State, key};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{Guarding, HOUR, TTL, World, is_pending, lock, refusal, request};

#[tokio::test(start_paused = true)]
async fn layers_of_one_keeper_exclude_each_other() {
    let world = World::new();
    let (one, mut stage) = world.staged(world.layer());
    let (other, _never) = world.staged(world.layer().with_lock_ttl(TTL * 2).unwrap());
    let call = one.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let called = other.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Locked { settled: Some(_), .. }));
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(other.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn layers_of_one_keeper_each_have_their_own_time_to_live() {
    let world = World::new();
    let brief = Duration::from_secs(2);
    let (one, mut stage) = world.staged(world.layer());
    let (other, mut brief_stage) = world.staged(world.layer().with_lock_ttl(brief).unwrap());
    let calls = [one.start(request("long")), other.start(request("brief"))];
    let (long, respond) = stage.next_request().await.unwrap();
    let (brief, respond_brief) = brief_stage.next_request().await.unwrap();
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
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn keepers_of_one_store_exclude_each_other() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (here, mut stage) = world.staged(world.layer());
    let (there, mut stage_there) = elsewhere.staged(elsewhere.layer());
    let call = here.start(request("p-1"));
    let (held, respond) = stage.next_request().await.unwrap();
    for _ in 0..20 {
        sleep(TTL / 4).await;
        assert!(refusal(&there.run("p-1").await).is_contention());
    }
    assert!(lock(&held).check().is_ok());
    respond.send_error("gateway busy");
    call.await.unwrap().unwrap_err();
    sleep(HOUR).await;
    let call = there.start(request("p-1"));
    let (taken, respond) = stage_there.next_request().await.unwrap();
    assert_eq!(lock(&taken).attempt(), 2);
    assert!(lock(&taken).token() > lock(&held).token());
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(here.run("p-1").await.unwrap().is_duplicate());
    world.assert_quiet().await;
    elsewhere.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_process_has_died_is_taken_over_when_it_expires_and_not_before() {
    let world = World::new();
    let mut dying = world.neighbour();
    let (there, mut stage) = dying.staged(dying.layer());
    let _call = there.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    sleep(TTL * 2).await; // it was renewed
    let expires = world.entry("p-1").unwrap().at();
    dying.crash().await;

    let (here, mut stage) = world.staged(world.layer());
    while world.clock.now() < expires - Duration::from_millis(200) {
        assert!(refusal(&here.run("p-1").await).is_contention());
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_millis(200)).await;
    let call = here.start(request("p-1"));
    let (taken, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&taken).attempt(), 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// Else each of two consumer groups would swallow the other's events.
#[tokio::test(start_paused = true)]
async fn the_same_key_in_another_namespace_is_another_key() {
    let world = World::new();
    let service = |namespace: &str| {
        let layer = IdempotencyLayer::new(&world.keeper, namespace, key::header("id"));
        layer.unwrap().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())))
    };
    for namespace in ["payments", "refunds", "payments.v2"] {
        assert_eq!(service(namespace).run("p-1").await.unwrap(), Outcome::Processed(()));
        assert!(service(namespace).run("p-1").await.unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_no_namespace_is_refused() {
    let world = World::new();
    for name in ["", "Payments", "pay ments", "{payments}", &"p".repeat(65)] {
        let layer = IdempotencyLayer::new(&world.keeper, name, key::header("id"));
        assert!(layer.is_err(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_service_are_one() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.clone().start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    assert!(refusal(&service.clone().run("p-1").await).is_contention());
    assert!(is_pending(&call).await);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert_eq!(world.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn settings_outside_their_range_are_refused() {
    let world = World::new();
    let (ms, day) = (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
    assert!(world.layer().with_lock_ttl(ms * 499).is_err());
    assert!(world.layer().with_lock_ttl(ms * 500).is_ok());
    assert!(world.layer().with_lock_ttl(HOUR + ms).is_err());
    assert!(world.layer().with_lock_ttl(HOUR).is_ok());
    assert!(world.layer().with_max_attempts(0).is_err());
    assert!(world.layer().with_max_attempts(65_536).is_err());
    assert!(world.layer().with_max_attempts(65_535).is_ok());
    assert!(world.layer().with_max_hold(ms * 499).is_err());
    assert!(world.layer().with_max_hold(day + ms).is_err());
    assert!(world.layer().with_retention(ms * 999).is_err());
    assert!(world.layer().with_retention(Duration::MAX).is_err());
    assert!(world.layer().with_failed_retention(ms * 999).is_err());
    // An attempt that is backing off must not be forgotten before it is due.
    assert!(world.layer().with_attempt_retention(day).is_err());
    assert!(world.layer().with_attempt_retention(day + HOUR).is_ok());
}
