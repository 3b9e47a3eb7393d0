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

use crate::harness::{
    CallResult, HOUR, Harness, TTL, TestService, is_pending, layer_error, lock, request,
};

fn cause<T: std::fmt::Debug>(result: &CallResult<T>) -> LostCause {
    match layer_error(result) {
        IdempotencyError::LockLost(lost) => lost.cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn unrenewable_lock_is_lost_before_it_expires_in_store() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply] {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer());
        let call = service.start(request("p-1"));
        let (request, _respond) = handle.next_request().await.unwrap();
        let confirmed = harness.entry("p-1").unwrap().at();
        harness.store.inject_always_of("renew", fault);
        let lost = lock(&request).lost().await;
        assert_eq!(lost.cause, LostCause::Expired);
        let margin = confirmed.duration_since(harness.clock.now()).unwrap();
        assert!(margin >= TTL / 10 - Duration::from_millis(2), "{fault:?}: {margin:?}");
        assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
        harness.store.heal();
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn superseded_lock_is_lost_with_next_renewal() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    let lock = lock(&request);
    harness.take_over("p-1").await;
    let superseding_entry = harness.entry("p-1");
    assert_eq!(lock.lost().await.cause, LostCause::Superseded);
    assert!(harness.clock.elapsed() <= TTL / 3 + Duration::from_millis(2), "with the next renewal");
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(cause(&call.await.unwrap()), LostCause::Superseded);
    harness.assert_settled().await;
    assert_eq!(harness.entry("p-1"), superseding_entry, "a stale grant changes nothing");
    assert_eq!(harness.store.count("release"), 0, "the store has said that it would be refused");
}

#[tokio::test(start_paused = true)]
async fn hung_handler_loses_its_lock_after_max_hold() {
    let harness = Harness::new();
    let max_hold = Duration::from_secs(90);
    let (service, mut handle) =
        harness.mock_service(harness.layer_with(|config| config.with_max_hold(max_hold)));
    let call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).lost().await.cause, LostCause::MaxHold);
    let elapsed = harness.clock.elapsed();
    assert!((max_hold..max_hold + Duration::from_millis(2)).contains(&elapsed), "{elapsed:?}");
    assert_eq!(cause(&call.await.unwrap()), LostCause::MaxHold);
    harness.assert_settled().await;
    // The attempt is counted, and the entry states the reason.
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("held longer than `max_hold`"));
}

/// A flag that is set when the handler that holds it is dropped.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_is_dropped_on_lost_lock_by_default() {
    let harness = Harness::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = dropped.clone();
    let service = harness.layer().layer(service_fn(move |_: Request<()>| {
        let flag = DropFlag(flag.clone());
        async move {
            let _flag = flag;
            std::future::pending::<Result<(), BoxError>>().await
        }
    }));
    harness.store.inject_always_of("renew", Fault::Refuse);
    let result = service.run("p-1").await;
    assert!(dropped.load(Ordering::Relaxed));
    let lost = error::find::<campanile_core::LockLost>(&**result.as_ref().unwrap_err()).unwrap();
    assert_eq!(Some(lost.token), harness.entry("p-1").map(|entry| entry.token()));
    // The store was unavailable, which says nothing about the record: the attempt is uncounted.
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn notified_handler_continues_and_counts_unless_superseded() {
    for is_superseded in [false, true] {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer().on_lost(OnLost::Notify));
        let call = service.start(request("p-1"));
        let (request, respond) = handle.next_request().await.unwrap();
        harness.store.inject_always_of("renew", Fault::Refuse);
        lock(&request).lost().await;
        assert!(is_pending(&call).await);
        sleep(TTL).await;
        if is_superseded {
            harness.take_over("p-1").await;
        }
        respond.send_response("done");
        let result = call.await.unwrap();
        if is_superseded {
            assert_eq!(cause(&result), LostCause::Superseded);
            assert_eq!(harness.state("p-1"), Some(State::Processing));
        } else {
            assert_eq!(result.unwrap(), Outcome::Processed("done"));
            assert_eq!(harness.state("p-1"), Some(State::Completed));
        }
        harness.assert_settled().await;
    }
}

/// As in a process that was stopped, or on a machine that was suspended, and resumes later.
#[tokio::test(start_paused = true)]
async fn handler_is_not_polled_after_its_deadline() {
    let harness = Harness::new();
    let (polls, wake) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, woken) = (polls.clone(), wake.clone());
    let service = harness.layer().layer(service_fn(move |_: Request<()>| {
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
    harness.clock.advance(TTL);
    wake.notify_one();
    assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    // The process was paused, which says nothing about the record: the attempt is uncounted.
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn lost_lock_blocks_key_in_process_until_holder_ends() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer().on_lost(OnLost::Notify));
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always_of("renew", Fault::Refuse);
    lock(&request).lost().await;
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { settled: Some(_), .. }));
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn keeper_crash_loses_all_locks() {
    let mut harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    harness.crash().await;
    assert!(lock(&request).check().is_err());
    assert_eq!(cause(&call.await.unwrap()), LostCause::Expired);
}

#[tokio::test(start_paused = true)]
async fn handler_sees_remaining_lock_time() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let _call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    let lock = lock(&request);
    let until = harness.clock.now() + lock.remaining();
    assert!(until < harness.entry("p-1").map_or(SystemTime::UNIX_EPOCH, |entry| entry.at()));
    harness.store.inject_always_of("renew", Fault::Refuse);
    sleep(lock.remaining() / 2).await;
    assert!(lock.check().is_ok());
    sleep(lock.remaining()).await;
    assert!(lock.check().is_err());
}
