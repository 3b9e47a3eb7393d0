//! The runs of the handlers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::{Clock, Lock, LockLost};

/// The runs of all handlers, in the order in which they started.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Run>>>);

/// A handler that started.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) begun: Duration,
    pub(crate) end: End,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Runs,
    /// The handler finished at this time.
    Ended(Duration),
    /// The handler was dropped at this time, with the reason if its lock was lost.
    Dropped(Duration, Option<LockLost>),
}

impl Ledger {
    /// Records the start of a handler. The returned value records the end.
    pub(crate) fn begin(&self, key: &str, lock: &Lock) -> Open {
        let mut runs = self.0.lock().unwrap();
        runs.push(Run {
            key: key.to_owned(),
            token: lock.token().get(),
            attempt: lock.attempt(),
            begun: now(),
            end: End::Runs,
        });
        Open { ledger: self.clone(), index: runs.len() - 1, lock: lock.clone(), ended: false }
    }

    /// Evaluates a function of the runs.
    pub(crate) fn tell<T>(&self, of: impl FnOnce(&[Run]) -> T) -> T {
        of(&self.0.lock().unwrap())
    }
}

/// A run in progress.
pub(crate) struct Open {
    ledger: Ledger,
    index: usize,
    lock: Lock,
    ended: bool,
}

impl Open {
    /// Records that the handler has finished.
    pub(crate) fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let end = if self.ended {
            End::Ended(now())
        } else {
            End::Dropped(now(), self.lock.check().err())
        };
        self.ledger.0.lock().unwrap()[self.index].end = end;
    }
}

impl Run {
    pub(crate) fn ended(&self) -> Option<Duration> {
        match self.end {
            End::Ended(at) => Some(at),
            End::Runs | End::Dropped(..) => None,
        }
    }
}

/// Reads the machine's clock.
pub(crate) fn now() -> Duration {
    Clock::boot().now()
}
