//! Locks that were handed over, and what is done with them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use campanile_core::State;
use campanile_idempotency::{HeldLock, IdempotencyError};
use tokio::time::{sleep, timeout};

use super::{ENDED, FATES, Fate, LEAVES};
use crate::world::{Guarding, HOUR, World, exhausted, failed, failing, settle_down};

/// What the lock was handed over for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    LastAttempt,
    Exhausted,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Reject,
    Release,
    Fail,
}

/// When the deed's future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// It was never polled, and nothing was sent.
    Unpolled,
    /// It was polled, and nothing was sent.
    Unsent,
    /// The command is on its way.
    Sent(Fate),
    /// The answer is there, and nobody has looked at it.
    Answered,
}

type Settling = Pin<Box<dyn Future<Output = Result<(), IdempotencyError>>>>;

impl Lock {
    /// Attempts are used up by one that fails.
    async fn take(self, world: &World) -> HeldLock {
        let layer = world.layer().with_max_attempts(1).unwrap();
        let service = failing(&layer, || "gateway busy".into());
        let called = service.run("p-1").await;
        if self == Self::LastAttempt {
            return failed(&called).take_lock().unwrap();
        }
        drop(called);
        sleep(HOUR).await;
        exhausted(&service.run("p-1").await).take_lock().unwrap()
    }
}

impl Deed {
    fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Release => "release",
            Self::Fail => "fail",
        }
    }

    fn on(self, lock: HeldLock) -> Settling {
        match self {
            Self::Reject => Box::pin(lock.reject("published")),
            Self::Release => Box::pin(lock.release()),
            Self::Fail => Box::pin(lock.fail()),
        }
    }

    /// State and attempts of the entry in the end.
    fn leaves(self, lock: Lock) -> (State, u16) {
        match (self, lock) {
            (Self::Reject, _) => (State::Failed, 1),
            // As never tried.
            (Self::Release, Lock::LastAttempt) => (State::Retrying, 0),
            (Self::Release, Lock::Exhausted) | (Self::Fail, _) => (State::Retrying, 1),
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

async fn run(lock: Lock, deed: Deed, cut: Cut) {
    let world = World::new();
    let held = lock.take(&world).await;
    let what = format!("{lock:?} {deed:?} {cut:?}");
    if let Cut::Sent(fate) = cut {
        fate.awaits(&world, deed.name());
    }
    let mut settling = deed.on(held);
    match cut {
        Cut::Unpolled => drop(settling),
        Cut::Unsent => {
            poll_once(&mut settling).await;
            drop(settling);
        }
        Cut::Sent(fate) => {
            assert!(timeout(LEAVES, settling).await.is_err(), "{what}: it ended before");
            assert_eq!(world.store.count(deed.name()), 1, "{what}: its command was sent");
            fate.comes(&world).await;
        }
        Cut::Answered => {
            poll_once(&mut settling).await;
            settle_down().await;
            drop(settling);
        }
    }
    sleep(ENDED).await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), deed.leaves(lock), "{what}");
    assert!(!entry.is_doomed(), "{what}");
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_done_with_a_lock_takes_place_although_its_future_is_dropped() {
    let mut cuts = vec![Cut::Unpolled, Cut::Unsent, Cut::Answered];
    cuts.extend(FATES.map(Cut::Sent));
    let mut runs = 0;
    for lock in [Lock::LastAttempt, Lock::Exhausted] {
        for deed in [Deed::Reject, Deed::Release, Deed::Fail] {
            for cut in &cuts {
                run(lock, deed, *cut).await;
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_dropped_is_let_go_once_however_its_command_comes_out() {
    for lock in [Lock::LastAttempt, Lock::Exhausted] {
        for fate in FATES {
            let world = World::new();
            let held = lock.take(&world).await;
            fate.awaits(&world, "fail");
            drop(held);
            sleep(LEAVES).await;
            fate.comes(&world).await;
            let entry = world.entry("p-1").unwrap();
            let seen = (entry.state(), entry.attempt(), entry.is_doomed());
            assert_eq!(seen, (State::Retrying, 1, false), "{lock:?} {fate:?}");
            assert_eq!(entry.error().as_deref(), Some("gateway busy"), "{lock:?} {fate:?}");
            world.assert_quiet().await;
        }
    }
}
