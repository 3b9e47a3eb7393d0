//! What happens when a lock is lost.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, LostCause, Outcome, Request, State, error};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::OnLost;
use campanile_test::faults::Fault;
use tokio::sync::Notify;
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{Called, Guarding, HOUR, TTL, World, is_pending, lock, refusal, request};

fn cause<T: std::fmt::Debug>(called: &Called<T>) -> LostCause {
    match refusal(called) {
        IdempotencyError::LockLost(lost) => lost.cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_renewed_is_lost_before_it_expires_in_the_store() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply] {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer());
        let call = service.start(request("p-1"));
        let (request, _respond) = stage.next_request().await.unwrap();
        let confirmed = world.entry("p-1").unwrap().at();
        world.store.always_of("renew", fault);
        let lost = lock(&request).lost().await;
        assert_eq!(lost.cause, LostCause::Expired);
        let margin = confirmed.duration_since(world.clock.now()).unwrap();
        assert!(margin >= TTL / 10 - Duration::from_millis(2), "{fault:?}: {margin:?}");
        assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
        world.store.heal();
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_granted_to_another_is_lost_at_once() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (request, _respond) = stage.next_request().await.unwrap();
    let lock = lock(&request);
    world.usurp("p-1").await;
    let usurped = world.entry("p-1");
    assert_eq!(lock.lost().await.cause, LostCause::Superseded);
    assert!(world.clock.elapsed() <= TTL / 3 + Duration::from_millis(2), "with the next renewal");
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(cause(&call.await.unwrap()), LostCause::Superseded);
    world.assert_quiet().await;
    assert_eq!(world.entry("p-1"), usurped, "a stale grant changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_loses_its_lock_in_the_end() {
    let world = World::new();
    let most = Duration::from_secs(90);
    let (service, mut stage) = world.staged(world.layer().with_max_hold(most).unwrap());
    let call = service.start(request("p-1"));
    let (request, _respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).lost().await.cause, LostCause::MaxHold);
    let elapsed = world.clock.elapsed();
    assert!((most..most + Duration::from_millis(2)).contains(&elapsed), "{elapsed:?}");
    assert_eq!(cause(&call.await.unwrap()), LostCause::MaxHold);
    world.assert_quiet().await;
    // That was an attempt, and it says why.
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("held longer than `max_hold`"));
}

/// A handler that never ends, and says when it was dropped.
struct Hanging(Arc<AtomicBool>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_the_handler_is_dropped_when_its_lock_is_lost() {
    let world = World::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let hanging = dropped.clone();
    let service = world.layer().layer(service_fn(move |_: Request<()>| {
        let hanging = Hanging(hanging.clone());
        async move {
            let _hanging = hanging;
            std::future::pending::<Result<(), BoxError>>().await
        }
    }));
    world.store.always_of("renew", Fault::Refuse);
    let called = service.run("p-1").await;
    assert!(dropped.load(Ordering::Relaxed));
    let lost = error::find::<campanile_core::LockLost>(&**called.as_ref().unwrap_err()).unwrap();
    assert_eq!(Some(lost.token), world.entry("p-1").map(|entry| entry.token()));
    // The store was away, which says nothing about the record: the attempt is handed back.
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn if_it_is_only_notified_the_handler_goes_on_and_its_result_counts_unless_it_was_overtaken()
{
    for overtaken in [false, true] {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer().with_lost(OnLost::Notify));
        let call = service.start(request("p-1"));
        let (request, respond) = stage.next_request().await.unwrap();
        world.store.always_of("renew", Fault::Refuse);
        lock(&request).lost().await;
        assert!(is_pending(&call).await);
        sleep(TTL).await;
        if overtaken {
            world.usurp("p-1").await;
        }
        respond.send_response("done");
        let called = call.await.unwrap();
        if overtaken {
            assert_eq!(cause(&called), LostCause::Superseded);
            assert_eq!(world.state("p-1"), Some(State::Processing));
        } else {
            assert_eq!(called.unwrap(), Outcome::Processed("done"));
            assert_eq!(world.state("p-1"), Some(State::Completed));
        }
        world.assert_quiet().await;
    }
}

/// As a process that was stopped, or a machine that was suspended, and wakes up later.
#[tokio::test(start_paused = true)]
async fn a_handler_is_not_polled_once_its_deadline_has_passed() {
    let world = World::new();
    let (polls, wake) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, woken) = (polls.clone(), wake.clone());
    let service = world.layer().layer(service_fn(move |_: Request<()>| {
        let (polls, wake) = (counted.clone(), woken.clone());
        async move {
            let mut wake = Box::pin(wake.notified());
            poll_fn(move |cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                wake.as_mut().poll(cx)
            })
            .await;
            Ok::<_, BoxError>(())
        }
    }));
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    world.clock.put_forward(TTL);
    wake.notify_one();
    assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_here_still_keeps_others_of_here_out_until_its_holder_ends() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer().with_lost(OnLost::Notify));
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    world.store.always_of("renew", Fault::Refuse);
    lock(&request).lost().await;
    sleep(HOUR).await;
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Locked { settled: Some(_), .. }));
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn without_its_keeper_every_lock_is_lost() {
    let mut world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (request, _respond) = stage.next_request().await.unwrap();
    world.crash().await;
    assert!(lock(&request).check().is_err());
    assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
}

#[tokio::test(start_paused = true)]
async fn the_handler_sees_how_long_its_lock_holds() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let _call = service.start(request("p-1"));
    let (request, _respond) = stage.next_request().await.unwrap();
    let lock = lock(&request);
    let until = world.clock.now() + lock.remaining();
    assert!(until < world.entry("p-1").map_or(SystemTime::UNIX_EPOCH, |entry| entry.at()));
    world.store.always_of("renew", Fault::Refuse);
    sleep(lock.remaining() / 2).await;
    assert!(lock.check().is_ok());
    sleep(lock.remaining()).await;
    assert!(lock.check().is_err());
}
