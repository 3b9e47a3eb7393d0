//! The clock of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use crate::TestClock;

/// The clock of a store: it runs as that of the processes, and can be set.
#[derive(Clone, Debug)]
pub struct StoreClock {
    clock: TestClock,
    steps: Arc<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    /// Microseconds by which the clock is ahead of the other, or behind it.
    ahead: AtomicI64,
    was_set_forward: AtomicBool,
}

impl StoreClock {
    pub(super) fn new(clock: TestClock) -> Self {
        Self { clock, steps: Arc::default() }
    }

    /// Reads the clock.
    pub fn now(&self) -> SystemTime {
        let ahead = self.steps.ahead.load(Ordering::Relaxed);
        let by = Duration::from_micros(ahead.unsigned_abs());
        if ahead < 0 { self.clock.now() - by } else { self.clock.now() + by }
    }

    /// Sets the clock forward by these microseconds, or back if they are negative.
    pub(super) fn step(&self, by: i64) {
        self.steps.ahead.fetch_add(by, Ordering::Relaxed);
        self.steps.was_set_forward.fetch_or(by > 0, Ordering::Relaxed);
    }

    /// Checks whether locks may have ended early.
    pub(super) fn was_set_forward(&self) -> bool {
        self.steps.was_set_forward.load(Ordering::Relaxed)
    }
}
