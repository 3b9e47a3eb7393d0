//! Futures that only wait: for the holder of a key, the loss of a lock, the end of the keeper.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{LostCause, Outcome, State};
use campanile_idempotency::{IdempotencyError, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{sleep, timeout};
use tower::{ServiceBuilder, ServiceExt};
use tower_test::mock;

use super::{FATES, LEAVES};
use crate::world::{
    Guarding, HOUR, Handler, Stage, TTL, World, failing, is_pending, lock, refusal, request,
    settle_down,
};

/// Polls once; says whether it is ready.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// Whom a retry around the layer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// A holder of this process.
    Here,
    /// One of another.
    There,
    /// The back-off after a failed attempt.
    BackOff,
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_that_is_left_while_it_waits_has_written_nothing() {
    for waits_for in [WaitsFor::Here, WaitsFor::There, WaitsFor::BackOff] {
        let world = World::new();
        let there = world.neighbour();
        let holder = if waits_for == WaitsFor::There { &there } else { &world };
        let (held, mut stage) = holder.staged(holder.layer());
        let mut holds = None;
        if waits_for == WaitsFor::BackOff {
            failing(&world.layer(), || "gateway busy".into()).run("p-1").await.unwrap_err();
        } else {
            let call = held.start(request("p-1"));
            let (_, respond) = stage.next_request().await.unwrap();
            holds = Some((call, respond));
        }
        let (handler, _stage): (Handler, Stage) = mock::pair();
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(HOUR))
            .layer(world.layer())
            .concurrency_limit(1)
            .service(handler);
        let before = world.entry("p-1");
        let waited = timeout(Duration::from_millis(1), service.clone().oneshot(request("p-1")));
        assert!(waited.await.is_err(), "{waits_for:?}: it did not wait");
        settle_down().await;
        assert_eq!(world.entry("p-1"), before, "{waits_for:?}");
        // Nothing comes of it later, either, and its permit is back.
        world.store.forget_calls();
        if let Some((call, respond)) = holds {
            respond.send_response("done");
            assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"), "{waits_for:?}");
            let called = timeout(LEAVES, service.oneshot(request("p-1"))).await.unwrap();
            assert!(called.unwrap().is_duplicate(), "{waits_for:?}");
        }
        assert_eq!(world.store.count("cancel") + world.store.count("release"), 0, "{waits_for:?}");
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn signals_that_are_dropped_wake_nobody_and_keep_nobody_from_being_woken() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let holder = service.start(request("p-1"));
    let (held, respond) = stage.next_request().await.unwrap();
    let called = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = refusal(&called) else {
        panic!("{called:?}");
    };
    world.store.forget_calls();
    let lock = lock(&held);
    for polled in [false, true] {
        let (mut settles, mut lost) = (pin!(settled.clone()), pin!(lock.lost()));
        if polled {
            assert!(!poll_once(settles.as_mut()).await && !poll_once(lost.as_mut()).await);
        }
    }
    let mut lost = pin!(lock.lost());
    assert!(!poll_once(lost.as_mut()).await);
    assert_eq!(world.store.calls().len(), 0, "waiting asks the store nothing");
    assert!(is_pending(&holder).await);

    // The first is lost, as the store refuses to renew it; the second then hears that it has ended.
    world.store.always(Fault::Refuse);
    assert_eq!(timeout(TTL, lost).await.unwrap().cause, LostCause::Expired);
    holder.await.unwrap().unwrap_err();
    drop(respond);
    world.store.heal();
    timeout(TTL, settled.clone()).await.expect("the holder has ended");
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_the_keeper_that_is_dropped_lets_what_is_held_come_to_its_end() {
    for fate in FATES {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer());
        // Not even begun.
        drop(world.keeper.shutdown(HOUR));
        let call = service.start(request("p-1"));
        let (_, respond) = stage.next_request().await.unwrap();
        assert!(!poll_once(pin!(world.keeper.shutdown(HOUR))).await, "something is held");
        settle_down().await;
        let refused = service.run("p-2").await;
        assert!(matches!(refusal(&refused), IdempotencyError::ShuttingDown), "{refused:?}");

        fate.awaits(&world, "complete");
        respond.send_response("done");
        assert!(is_pending(&call).await);
        // Dropped while the keeper settles.
        assert!(timeout(LEAVES, world.keeper.shutdown(HOUR)).await.is_err(), "{fate:?}");
        fate.comes(&world).await;
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"), "{fate:?}");
        assert_eq!(world.state("p-1"), Some(State::Completed), "{fate:?}");
        sleep(LEAVES).await;
        world.assert_quiet().await;
    }
}
