//! The lock keeper's handle to a lock.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::step::LockSteps;
use super::{Completion, HELD, Inner, LockHandle, RecordSteps, decode_cause, nanos};
use crate::clock::Clock;
use crate::key::DerivationSecret;
use crate::wakers::Wakers;
use crate::{Grant, IdempotencyKey, LockLost, LostCause, Steps, StoreKey};

/// Changes the state of a [`LockHandle`]: renews it, declares it lost, or marks its entry as completed.
///
/// Created by the lock keeper. The idempotency layer passes it to a store that completes entries
/// together with the handler's effect. A request carries only the [`LockHandle`], from which a
/// `LockControl` cannot be obtained.
#[derive(Clone)]
pub struct LockControl(LockHandle);

impl LockControl {
    /// Creates a lock that is granted until this deadline, by this clock.
    #[expect(clippy::too_many_arguments, reason = "each is a different property of the lock")]
    pub fn new(
        store_key: StoreKey,
        key: IdempotencyKey,
        derivation_secret: Option<DerivationSecret>,
        grant: Grant,
        attempt: u32,
        steps: Option<Steps>,
        clock: Clock,
        deadline: Duration,
    ) -> Self {
        Self(LockHandle(Arc::new(Inner {
            store_key,
            key,
            derivation_secret,
            grant,
            attempt,
            clock,
            deadline: AtomicU64::new(nanos(deadline)),
            loss: AtomicU8::new(HELD),
            is_effect_possible: AtomicBool::new(false),
            wakers: Wakers::default(),
            completion: OnceLock::new(),
            steps: LockSteps::new(steps),
        })))
    }

    /// Returns the lock as the handler sees it.
    pub fn lock_handle(&self) -> &LockHandle {
        &self.0
    }

    /// Sets what records the steps of the handler, before it is called.
    pub fn set_step_recorder(&self, recorder: Weak<dyn RecordSteps>) {
        self.inner().steps.set_recorder(recorder);
    }

    /// Refuses further steps: the handler has ended, and the lock is held on to publish a dead letter.
    pub fn end_steps(&self) {
        self.inner().steps.end();
    }

    /// Moves the deadline after a confirmed renewal. The deadline never moves back, and a lost lock
    /// stays lost.
    pub fn renewed(&self, deadline: Duration) {
        self.inner().deadline.fetch_max(nanos(deadline), Ordering::AcqRel);
    }

    /// Declares the lock lost and wakes its waiters. Only the first cause is kept.
    pub fn lose(&self, cause: LostCause) {
        self.0.lose(cause);
    }

    /// Finds out how the lock was lost, as [`LockHandle::check`] does.
    pub fn loss(&self) -> Option<LockLost> {
        self.0.loss()
    }

    /// Finds out why the lock is lost. Unlike [`loss`](Self::loss), this method wakes no task, so
    /// it can be called while a mutex is held.
    pub fn cause(&self) -> Option<LostCause> {
        let expired = || {
            let now = self.inner().clock.now();
            (now >= self.deadline()).then_some(LostCause::Expired)
        };
        decode_cause(self.inner().loss.load(Ordering::Acquire)).or_else(expired)
    }

    /// Returns when the lock is lost without a further renewal, by the keeper's clock.
    pub fn deadline(&self) -> Duration {
        self.0.deadline()
    }

    /// Marks that the handler has started, and that its effect stays if the lock is lost.
    pub fn set_effect_possible(&self) {
        self.inner().is_effect_possible.store(true, Ordering::Release);
    }

    /// Checks whether an effect of the handler or of one of its steps would stay if the lock were lost.
    pub fn is_effect_possible(&self) -> bool {
        self.inner().is_effect_possible.load(Ordering::Acquire)
    }

    /// Checks whether a step of the handler has started in this attempt.
    pub fn has_run_step(&self) -> bool {
        self.inner().steps.has_run()
    }

    /// Returns the name of a step that has run in this attempt with a result that is too large or cannot be
    /// encoded: the next attempt would run it again.
    pub fn unrecordable_step(&self) -> Option<Box<str>> {
        self.inner().steps.unrecordable()
    }

    /// Records that this grant completed the entry together with the handler's effect, so that the
    /// keeper does not complete it again.
    pub fn complete(&self, completion: Completion) {
        // A grant completes its entry once.
        let _ = self.inner().completion.set(Box::new(completion));
    }

    /// Returns how the entry was completed, if it was.
    pub fn completion(&self) -> Option<&Completion> {
        self.inner().completion.get().map(|completion| &**completion)
    }

    fn inner(&self) -> &Inner {
        &self.0.0
    }
}

impl fmt::Debug for LockControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockControl").field(&self.0).finish()
    }
}
