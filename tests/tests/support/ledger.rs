//! The runs of the handlers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::{
    LockHandle,
    lock::{Clock, LockLost},
};

/// The runs of all handlers, in the order in which they started.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Run>>>);

/// A handler that started.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) started: Duration,
    pub(crate) end: RunEnd,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) enum RunEnd {
    Running,
    /// The handler finished at this time.
    Finished(Duration),
    /// The handler was dropped at this time, with the reason if its lock was lost.
    Dropped(Duration, Option<LockLost>),
}

impl Ledger {
    /// Records the start of a handler. The returned value records the end.
    pub(crate) fn start_run(&self, key: &str, lock: &LockHandle) -> RunGuard {
        let mut runs = self.0.lock().unwrap();
        runs.push(Run {
            key: key.to_owned(),
            token: lock.token().get(),
            attempt: lock.attempt(),
            started: now(),
            end: RunEnd::Running,
        });
        RunGuard {
            ledger: self.clone(),
            index: runs.len() - 1,
            lock: lock.clone(),
            finished: false,
        }
    }

    /// Evaluates a function of the runs.
    pub(crate) fn with_runs<T>(&self, evaluate: impl FnOnce(&[Run]) -> T) -> T {
        evaluate(&self.0.lock().unwrap())
    }
}

/// A run in progress.
pub(crate) struct RunGuard {
    ledger: Ledger,
    index: usize,
    lock: LockHandle,
    finished: bool,
}

impl RunGuard {
    /// Records that the handler has finished.
    pub(crate) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let end = if self.finished {
            RunEnd::Finished(now())
        } else {
            RunEnd::Dropped(now(), self.lock.check().err())
        };
        self.ledger.0.lock().unwrap()[self.index].end = end;
    }
}

impl Run {
    pub(crate) fn finished_at(&self) -> Option<Duration> {
        match self.end {
            RunEnd::Finished(at) => Some(at),
            RunEnd::Running | RunEnd::Dropped(..) => None,
        }
    }
}

/// Reads the machine's clock.
pub(crate) fn now() -> Duration {
    Clock::boot().now()
}
