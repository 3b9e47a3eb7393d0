//! Locks that were handed over to the caller, and the actions on them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use campanile_core::State;
use campanile_idempotency::{HeldLock, IdempotencyError};
use tokio::time::{sleep, timeout};

use super::{DELIVERIES, DROP_AFTER, Delivery, SETTLE_TIME};
use crate::harness::{
    HOUR, Harness, TestService, exhausted, failed, failing_service, run_until_idle,
};

/// Why the lock was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockSource {
    LastAttempt,
    Exhausted,
}

/// The action on the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockAction {
    GiveUp,
    Release,
    Fail,
}

/// When the action's future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropPoint {
    /// Before its first poll: nothing has been sent.
    Unpolled,
    /// After its first poll: nothing has been sent.
    Unsent,
    /// While the command is in flight.
    Sent(Delivery),
    /// After the reply has arrived, and before the future is polled again.
    Answered,
}

type Settling = Pin<Box<dyn Future<Output = Result<(), IdempotencyError>>>>;

impl LockSource {
    /// Fails the only allowed attempt, and takes the lock of that attempt or the give-up lock after
    /// it.
    async fn take(self, harness: &Harness) -> HeldLock {
        let layer = harness.layer_with(|config| config.with_max_attempts(1));
        let service = failing_service(&layer, || "gateway busy".into());
        let result = service.run("p-1").await;
        if self == Self::LastAttempt {
            return failed(&result).take_lock().unwrap();
        }
        drop(result);
        sleep(HOUR).await;
        exhausted(&service.run("p-1").await).take_lock().unwrap()
    }
}

impl LockAction {
    fn name(self) -> &'static str {
        match self {
            Self::GiveUp => "give_up",
            Self::Release => "release",
            Self::Fail => "fail",
        }
    }

    fn apply_to(self, lock: HeldLock) -> Settling {
        match self {
            Self::GiveUp => Box::pin(lock.give_up("published")),
            Self::Release => Box::pin(lock.release()),
            Self::Fail => Box::pin(lock.fail()),
        }
    }

    /// The state and the attempts of the final entry.
    fn expected_entry(self, lock: LockSource) -> (State, u16) {
        match (self, lock) {
            (Self::GiveUp, _) => (State::Failed, 1),
            // The attempt is uncounted.
            (Self::Release, LockSource::LastAttempt) => (State::Retrying, 0),
            (Self::Release, LockSource::Exhausted) | (Self::Fail, _) => (State::Retrying, 1),
        }
    }
}

async fn poll_once(settling: &mut Settling) {
    poll_fn(|cx| {
        assert!(settling.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

async fn run(lock: LockSource, action: LockAction, drop_point: DropPoint) {
    let harness = Harness::new();
    let held = lock.take(&harness).await;
    let scenario = format!("{lock:?} {action:?} {drop_point:?}");
    if let DropPoint::Sent(delivery) = drop_point {
        delivery.inject(&harness, action.name());
    }
    let mut settling = action.apply_to(held);
    match drop_point {
        DropPoint::Unpolled => drop(settling),
        DropPoint::Unsent => {
            poll_once(&mut settling).await;
            drop(settling);
        }
        DropPoint::Sent(delivery) => {
            assert!(timeout(DROP_AFTER, settling).await.is_err(), "{scenario}: completed early");
            assert_eq!(harness.store.count(action.name()), 1, "{scenario}: sent once");
            delivery.finish(&harness).await;
        }
        DropPoint::Answered => {
            poll_once(&mut settling).await;
            run_until_idle().await;
            drop(settling);
        }
    }
    sleep(SETTLE_TIME).await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), action.expected_entry(lock), "{scenario}");
    assert!(!entry.has_permanent_failure(), "{scenario}");
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn lock_action_takes_effect_if_its_future_is_dropped() {
    let mut drop_points = vec![DropPoint::Unpolled, DropPoint::Unsent, DropPoint::Answered];
    drop_points.extend(DELIVERIES.map(DropPoint::Sent));
    let mut runs = 0;
    for lock in [LockSource::LastAttempt, LockSource::Exhausted] {
        for action in [LockAction::GiveUp, LockAction::Release, LockAction::Fail] {
            for drop_point in &drop_points {
                run(lock, action, *drop_point).await;
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn dropped_lock_is_released_exactly_once() {
    for lock in [LockSource::LastAttempt, LockSource::Exhausted] {
        for delivery in DELIVERIES {
            let harness = Harness::new();
            let held = lock.take(&harness).await;
            delivery.inject(&harness, "fail");
            drop(held);
            sleep(DROP_AFTER).await;
            delivery.finish(&harness).await;
            let entry = harness.entry("p-1").unwrap();
            let seen = (entry.state(), entry.attempt(), entry.has_permanent_failure());
            assert_eq!(seen, (State::Retrying, 1, false), "{lock:?} {delivery:?}");
            assert_eq!(entry.error().as_deref(), Some("gateway busy"), "{lock:?} {delivery:?}");
            harness.assert_settled().await;
        }
    }
}
