//! The time of a world, and the clock of its store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::TestClock;

/// The time of a world: that of the process that runs now. While it runs, the others are suspended.
#[derive(Clone, Default)]
pub(super) struct WorldTime(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: Option<TestClock>,
    elapsed: Duration,
    /// How far the store's clock is ahead.
    store_ahead: Duration,
}

impl WorldTime {
    /// The clock of the store.
    pub(super) fn store_clock(&self) -> impl Fn() -> SystemTime + Send + Sync + 'static {
        let time = self.clone();
        move || {
            let state = time.state();
            let clock = state.running.as_ref().expect("the store is called by a running process");
            clock.now() + state.store_ahead
        }
    }

    /// Continues a process, after it was suspended. Called on its runtime.
    pub(super) fn resume(&self, clock: &TestClock) {
        let mut state = self.state();
        clock.advance(state.elapsed.saturating_sub(clock.elapsed()));
        state.running = Some(clock.clone());
    }

    /// Suspends the process that runs. Called on its runtime.
    pub(super) fn suspend(&self) {
        let mut state = self.state();
        if let Some(clock) = &state.running {
            state.elapsed = clock.elapsed();
        }
    }

    /// Sets the store's clock forward, without the knowledge of the processes.
    pub(super) fn set_store_forward(&self, by: Duration) {
        self.state().store_ahead += by;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
