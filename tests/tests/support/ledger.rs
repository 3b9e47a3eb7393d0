//! What the handlers did.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::{Clock, Lock, LockLost};

/// The runs of all handlers, in the order in which they began.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Run>>>);

/// A handler that was begun.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) begun: Duration,
    pub(crate) end: End,
}

/// How it came out.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Runs,
    /// It came to its end, then.
    Ended(Duration),
    /// It was dropped then; why its lock was lost, if that was so.
    Dropped(Duration, Option<LockLost>),
}

impl Ledger {
    /// Takes down that a handler has begun. What it gives takes down how that comes out.
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

    /// What can be told of the runs.
    pub(crate) fn tell<T>(&self, of: impl FnOnce(&[Run]) -> T) -> T {
        of(&self.0.lock().unwrap())
    }
}

/// A run that goes on.
pub(crate) struct Open {
    ledger: Ledger,
    index: usize,
    lock: Lock,
    ended: bool,
}

impl Open {
    /// The handler's last step.
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

/// By the machine's clock.
pub(crate) fn now() -> Duration {
    Clock::boot().now()
}
