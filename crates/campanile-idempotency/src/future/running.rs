//! The lock while the inner service works under it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use campanile_core::{Completion, IdempotencyKey, Interrupt, LockLost, LostCause, Record};

use crate::error::Panicked;
use crate::keeper::{HeldLock, Settlement};
use crate::layer::Policies;
use crate::policy::OnAbandoned;

/// Knows what it means if it is dropped before the inner service has ended, and all of it that is
/// left to run: the drop of its future, the text of its error. (Those panic through; a handler's own
/// panic is caught, and is its error.)
pub(super) struct Running {
    /// `None` once it has ended.
    held: Option<HeldLock>,
    interrupt: Option<Interrupt>,
    guard: Arc<Policies>,
    /// Whether user code is on the stack. A drop that finds it set is a panic, also one that
    /// somebody above catches, which `thread::panicking` would not tell.
    inside: bool,
}

impl Running {
    pub(super) fn new(held: HeldLock, interrupt: Option<Interrupt>, guard: Arc<Policies>) -> Self {
        Self { held: Some(held), interrupt, guard, inside: false }
    }

    /// What is locked.
    pub(super) fn key(&self) -> &IdempotencyKey {
        self.held.as_ref().expect("until it has ended").lock().key()
    }

    /// The record that is processed, if the request has one.
    pub(super) fn record(&self) -> Option<&Record> {
        self.interrupt.as_ref().map(Interrupt::record)
    }

    /// Tells the driver that the handler has succeeded.
    pub(super) fn set_recording(&self) {
        if let Some(interrupt) = &self.interrupt {
            interrupt.set_recording();
        }
    }

    /// Whether the lock is lost, and how.
    pub(super) fn loss(&self) -> Option<LockLost> {
        self.held.as_ref().expect("until it has ended").control().loss()
    }

    /// Whether the lock is lost as this says, for a cause that says nothing about the record: the store
    /// could not be reached, or has granted the key to another.
    pub(super) fn ended_by(&self, lost: &LockLost) -> bool {
        self.loss().is_some_and(|loss| loss.token == lost.token && loss.cause != LostCause::MaxHold)
    }

    /// How the inner service has completed the entry, if it has.
    pub(super) fn completion(&self) -> Option<Completion> {
        self.held.as_ref().expect("until it has ended").control().completion().cloned()
    }

    /// Runs user code.
    pub(super) fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.inside = true;
        let result = call();
        self.inside = false;
        result
    }

    /// Runs the handler.
    pub(super) fn handle<T>(&mut self, call: impl FnOnce() -> T) -> Result<T, Panicked> {
        self.call(|| catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::new))
    }

    /// No user code is left to run; the lock is to be settled.
    pub(super) fn finish(mut self) -> HeldLock {
        self.held.take().expect("only this takes it")
    }

    fn abandoned(&self, held: &HeldLock) -> Settlement {
        let fail = |error: &str| {
            let attempt = held.lock().attempt();
            let delay = self.guard.backoff.delay(attempt);
            Settlement::Fail { delay, last: false, error: error.into() }
        };
        match held.control().loss().map(|lost| lost.cause) {
            Some(LostCause::Superseded) => return Settlement::Expire,
            Some(LostCause::MaxHold) => return fail("held longer than `max_hold`"),
            _ if self.inside => return fail("the handler panicked"),
            // The store could not be reached, which says nothing about the record. If nobody has
            // taken the lock meanwhile, it need not expire there, either.
            Some(_) => return Settlement::Release { ran: true },
            None => {}
        }
        if self.interrupt.as_ref().is_some_and(Interrupt::is_set) {
            return Settlement::Release { ran: true };
        }
        match self.guard.abandoned {
            OnAbandoned::Fail => fail("dropped before it had ended, as by a time-out"),
            OnAbandoned::Release => Settlement::Release { ran: true },
            OnAbandoned::Expire => Settlement::Expire,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut held) = self.held.take() {
            held.drop_means(self.abandoned(&held));
        }
    }
}
