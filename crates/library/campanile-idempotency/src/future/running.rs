//! The lock of a running handler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use campanile_core::{Completion, IdempotencyKey, Interrupt, LockLost, LostCause, Record};

use crate::error::Panicked;
use crate::keeper::{HeldLock, Settlement};
use crate::layer::Policies;
use crate::policy::OnDropped;

/// The lock of a running handler. It knows how to settle the lock if it is dropped before the inner
/// service has ended, and before the rest of the user code has run: the drop of the inner future
/// and the text of its error. Panics in that code propagate; a panic of the handler itself is
/// caught and becomes its error.
pub(super) struct Running {
    /// `None` once the attempt has ended.
    held: Option<HeldLock>,
    interrupt: Option<Interrupt>,
    policies: Arc<Policies>,
    /// Whether user code is on the stack. If it is set on drop, user code has panicked. In contrast
    /// to `thread::panicking`, this also detects panics that a caller catches.
    in_user_code: bool,
}

impl Running {
    pub(super) fn new(
        held: HeldLock,
        interrupt: Option<Interrupt>,
        policies: Arc<Policies>,
    ) -> Self {
        let recorder = Arc::downgrade(&policies);
        held.control().set_step_recorder(recorder);
        if !policies.rolls_back {
            held.control().set_effect_possible();
        }
        Self { held: Some(held), interrupt, policies, in_user_code: false }
    }

    fn held(&self) -> &HeldLock {
        self.held.as_ref().expect("present until the attempt ends")
    }

    pub(super) fn key(&self) -> &IdempotencyKey {
        self.held().lock_handle().key()
    }

    pub(super) fn record(&self) -> Option<&Record> {
        self.interrupt.as_ref().map(Interrupt::record)
    }

    /// Notifies the driver that the handler has succeeded.
    pub(super) fn set_recording(&self) {
        if let Some(interrupt) = &self.interrupt {
            interrupt.set_recording();
        }
    }

    pub(super) fn loss(&self) -> Option<LockLost> {
        self.held().control().loss()
    }

    /// Checks whether the lock was lost as `lost` reports, and for a cause that says nothing about
    /// the record: the store was not reachable, or it granted the key to another owner.
    pub(super) fn is_lost_as(&self, lost: &LockLost) -> bool {
        self.loss().is_some_and(|loss| loss.token == lost.token && loss.cause != LostCause::MaxHold)
    }

    /// The name of a step that the next attempt would run again, because its result cannot be recorded.
    pub(super) fn unrecordable_step(&self) -> Option<Box<str>> {
        self.held().control().unrecordable_step()
    }

    /// The inner service may have completed the entry itself.
    pub(super) fn completion(&self) -> Option<Completion> {
        self.held().control().completion().cloned()
    }

    /// Runs user code.
    pub(super) fn run_user_code<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.in_user_code = true;
        let result = call();
        self.in_user_code = false;
        result
    }

    /// Runs the handler and catches its panics.
    pub(super) fn run_handler<T>(&mut self, call: impl FnOnce() -> T) -> Result<T, Panicked> {
        self.run_user_code(|| catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::new))
    }

    /// Takes the lock for settlement, after all user code has run.
    pub(super) fn finish(mut self) -> HeldLock {
        self.held.take().expect("taken only by `finish` and by drop")
    }

    fn drop_settlement(&self, held: &HeldLock) -> Settlement {
        let fail = |error: &str| {
            let attempt = held.lock_handle().attempt();
            let delay = self.policies.backoff.delay(attempt);
            let last = held.control().unrecordable_step().is_some();
            Settlement::Fail { delay, last, error: error.into() }
        };
        match held.control().loss().map(|lost| lost.cause) {
            Some(LostCause::Superseded) => return Settlement::Expire,
            Some(LostCause::MaxHold) => return fail("held longer than `max_hold`"),
            _ if self.in_user_code => return fail("the handler panicked"),
            // The store was not reachable, which says nothing about the record. If no other owner
            // has taken the lock, release it there so that it does not have to expire.
            Some(_) => return Settlement::Release { ran: true },
            None => {}
        }
        if self.interrupt.as_ref().is_some_and(Interrupt::is_set) {
            return Settlement::Release { ran: true };
        }
        match self.policies.dropped {
            OnDropped::Fail => fail("dropped before it completed, for example by a timeout"),
            OnDropped::Release => Settlement::Release { ran: true },
            OnDropped::Expire => Settlement::Expire,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut held) = self.held.take() {
            held.set_drop_settlement(self.drop_settlement(&held));
        }
    }
}
