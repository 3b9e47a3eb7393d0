//! The handlers that are running.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use campanile_core::{IdempotencyKey, LockHandle};

/// Handlers panic as part of the simulation, so violations are collected and reported at the end.
#[derive(Clone, Default)]
pub(super) struct Handlers(Arc<Mutex<HandlerState>>);

#[derive(Default)]
struct HandlerState {
    running: Vec<RunningHandler>,
    started: u64,
    violations: Vec<String>,
    /// The first two handlers of a key that had valid locks at the same time.
    overlap: Option<String>,
    /// The results of steps that handlers were given, by key and name.
    steps: HashMap<(IdempotencyKey, String), u64>,
    /// The first step that ran after a handler was given its result, or that has two results.
    repeated_step: Option<String>,
}

struct RunningHandler {
    number: u64,
    process: u64,
    lock: LockHandle,
}

impl Handlers {
    /// Starts a handler, which ends when the returned guard is dropped.
    pub(super) fn start(&self, process: u64, lock: &LockHandle) -> HandlerGuard {
        let mut state = self.0.lock().unwrap();
        state.started += 1;
        let number = state.started;
        let others = |it: &&RunningHandler| it.lock.key() == lock.key() && it.process == process;
        let others: Vec<_> =
            state.running.iter().filter(others).map(|it| it.lock.clone()).collect();
        if !others.is_empty() {
            let violation = format!("two under one keeper: {lock:?} and {others:?}");
            state.violations.push(violation);
        }
        let lock = lock.clone();
        state.running.push(RunningHandler { number, process, lock });
        state.check_locks();
        let handlers = self.clone();
        HandlerGuard { handlers, number }
    }

    /// Checks that at most one handler of each key has a valid lock.
    pub(super) fn check_locks(&self) {
        self.0.lock().unwrap().check_locks();
    }

    pub(super) fn add_violation(&self, violation: impl Into<String>) {
        self.0.lock().unwrap().violations.push(violation.into());
    }

    /// A step runs. Returns its result.
    pub(super) fn run_step(&self, lock: &LockHandle, name: &str) -> u64 {
        let mut state = self.0.lock().unwrap();
        if state.steps.contains_key(&(lock.key().clone(), name.to_owned())) {
            let repeated = format!("step {name} ran again: {lock:?}");
            state.repeated_step.get_or_insert(repeated);
        }
        lock.token().get()
    }

    /// A handler is given the result of a step.
    pub(super) fn end_step(&self, lock: &LockHandle, name: &str, result: u64) {
        let mut state = self.0.lock().unwrap();
        let step = (lock.key().clone(), name.to_owned());
        let first = *state.steps.entry(step).or_insert(result);
        if first != result {
            let repeated = format!("step {name} has two results: {lock:?}");
            state.repeated_step.get_or_insert(repeated);
        }
    }

    /// Asserts that nothing was violated. Locks may have overlapped if the store has lost or ended them.
    pub(super) fn assert_no_violations(&self, may_overlap: bool) {
        let state = self.0.lock().unwrap();
        assert!(state.violations.is_empty(), "{:#?}", state.violations);
        assert!(may_overlap || state.overlap.is_none(), "{:?}", state.overlap);
        let repeated = &state.repeated_step;
        assert!(may_overlap || repeated.is_none(), "{repeated:?}");
        assert_eq!(state.running.len(), 0, "all handlers have ended");
    }
}

impl HandlerState {
    fn check_locks(&mut self) {
        let locked: Vec<_> = self.running.iter().filter(|it| it.lock.check().is_ok()).collect();
        for (at, one) in locked.iter().enumerate() {
            for other in &locked[at + 1..] {
                if one.lock.key() == other.lock.key() {
                    let overlap = format!("two valid locks: {:?}, {:?}", one.lock, other.lock);
                    self.overlap.get_or_insert(overlap);
                    return;
                }
            }
        }
    }
}

pub(super) struct HandlerGuard {
    handlers: Handlers,
    number: u64,
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        // Not `unwrap`: this also runs while the test panics.
        let mut state = self.handlers.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.retain(|it| it.number != self.number);
    }
}
