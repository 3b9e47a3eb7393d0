//! The handlers that work at a moment.

use std::sync::{Arc, Mutex};

use campanile_core::Lock;

/// A panic in a handler is one of the things that happen, so what should not have been seen is kept
/// for the end.
#[derive(Clone, Default)]
pub(super) struct Handlers(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    working: Vec<Working>,
    begun: u64,
    violations: Vec<String>,
}

struct Working {
    number: u64,
    process: u64,
    lock: Lock,
}

impl Handlers {
    /// A handler begins; its end is the drop of what this returns.
    pub(super) fn begin(&self, process: u64, lock: &Lock) -> Work {
        let mut seen = self.0.lock().unwrap();
        seen.begun += 1;
        let number = seen.begun;
        let same = |it: &&Working| it.lock.key() == lock.key() && it.process == process;
        let same: Vec<_> = seen.working.iter().filter(same).map(|it| it.lock.clone()).collect();
        if !same.is_empty() {
            let violation = format!("under one keeper {lock:?}, and {same:?}");
            seen.violations.push(violation);
        }
        let lock = lock.clone();
        seen.working.push(Working { number, process, lock });
        seen.look();
        let handlers = self.clone();
        Work { handlers, number }
    }

    /// Of all handlers of a key, one has a lock that holds.
    pub(super) fn look(&self) {
        self.0.lock().unwrap().look();
    }

    pub(super) fn note(&self, violation: impl Into<String>) {
        self.0.lock().unwrap().violations.push(violation.into());
    }

    pub(super) fn assert_sound(&self) {
        let seen = self.0.lock().unwrap();
        assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
        assert_eq!(seen.working.len(), 0, "all have ended");
    }
}

impl Seen {
    fn look(&mut self) {
        let locked: Vec<_> = self.working.iter().filter(|it| it.lock.check().is_ok()).collect();
        for (at, one) in locked.iter().enumerate() {
            for other in &locked[at + 1..] {
                if one.lock.key() == other.lock.key() {
                    let violation = format!("two that hold {:?}, {:?}", one.lock, other.lock);
                    self.violations.push(violation);
                    return;
                }
            }
        }
    }
}

pub(super) struct Work {
    handlers: Handlers,
    number: u64,
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut seen = self.handlers.0.lock().unwrap();
        seen.working.retain(|it| it.number != self.number);
    }
}
