//! What handles and the driver share: pauses, resumes and shutdowns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::watch;

use super::vitals::Vitals;
use crate::handle::Paused;

pub(crate) struct Control {
    state: watch::Sender<State>,
    driver: AtomicWaker,
    halt: Arc<Halt>,
    vitals: Arc<Vitals>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) paused: Option<Paused>,
    /// How many times it was resumed.
    pub(crate) resumed: u64,
    shutdown: Option<Shutdown>,
    pub(crate) ended: bool,
}

/// How serving is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shutdown {
    /// Records in flight may end, within the drain's time.
    Graceful,
    /// Records in flight are dropped.
    Now,
}

/// Whether runs may start their next record.
#[derive(Default)]
pub(crate) struct Halt {
    paused: AtomicBool,
    suspended: AtomicBool,
}

impl Halt {
    /// Returns whether the consumer is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Returns whether only the records that the scheduler has chosen are started.
    pub(super) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }
}

impl Control {
    pub(crate) fn vitals(&self) -> &Arc<Vitals> {
        &self.vitals
    }

    pub(crate) fn state(&self) -> &watch::Sender<State> {
        &self.state
    }

    /// Pauses the consumer. A flood says more than a pause that was asked for.
    pub(crate) fn pause(&self, why: Paused) {
        self.change(|state| {
            let changes = match state.paused {
                None => true,
                Some(Paused::ByHandle) => why != Paused::ByHandle,
                Some(Paused::Flood { .. }) => false,
            };
            let changes = changes && !state.ended;
            if changes {
                state.paused = Some(why);
            }
            changes
        });
    }

    pub(crate) fn resume(&self) {
        self.change(|state| {
            state.paused = None;
            state.resumed += 1;
            true
        });
    }

    /// Ends serving. A later call may only hurry an earlier one.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        self.change(|state| {
            let changes = !state.ended && state.shutdown < Some(how);
            if changes {
                state.shutdown = Some(how);
            }
            changes
        });
    }

    /// Returns whether serving is to end.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.state.borrow().shutdown.is_some()
    }

    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let changed = self.state.send_if_modified(|state| {
            let changed = change(state);
            // Under the state's lock, so that both change in the same order.
            self.halt.paused.store(state.paused.is_some(), Ordering::Release);
            changed
        });
        if changed {
            self.driver.wake();
        }
    }
}

/// The driver's end of the control. Dropped, serving has ended.
pub(crate) struct Switch {
    control: Arc<Control>,
    /// As it was logged last.
    paused: bool,
    resumed: u64,
    shutdown: Option<Shutdown>,
}

impl Switch {
    pub(crate) fn new(vitals: Vitals) -> Self {
        let control = Control {
            state: watch::Sender::default(),
            driver: AtomicWaker::new(),
            halt: Arc::default(),
            vitals: Arc::new(vitals),
        };
        Self { control: Arc::new(control), paused: false, resumed: 0, shutdown: None }
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    pub(crate) fn vitals(&self) -> &Arc<Vitals> {
        self.control.vitals()
    }

    /// Returns whether records may be started, and dead letters published, at this moment.
    pub(super) fn is_paused(&self) -> bool {
        self.control.halt.is_paused()
    }

    /// Returns what runs ask before each record.
    pub(super) fn halt(&self) -> Arc<Halt> {
        self.control.halt.clone()
    }

    /// Stops runs before their next record, or lets them go on.
    pub(super) fn suspend(&self, suspended: bool) {
        self.control.halt.suspended.store(suspended, Ordering::Release);
    }

    /// Returns whether the consumer was resumed since the last call.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> bool {
        // Register first, so that what changes after the look wakes the driver.
        self.control.driver.register(cx.waker());
        let state = self.control.state.borrow();
        let resumed = state.resumed != self.resumed;
        self.resumed = state.resumed;
        let paused = state.paused.is_some();
        if paused != self.paused {
            self.paused = paused;
            match &state.paused {
                // A flood is logged where it is met.
                Some(Paused::ByHandle) => tracing::info!("paused"),
                Some(Paused::Flood { .. }) => {}
                None => tracing::info!("resumed"),
            }
        }
        resumed
    }

    /// Returns how serving is to end, if that has changed since the last call.
    pub(crate) fn take_shutdown(&mut self) -> Option<Shutdown> {
        let shutdown = self.control.state.borrow().shutdown;
        let new = shutdown != self.shutdown;
        self.shutdown = shutdown;
        shutdown.filter(|_| new)
    }

    pub(crate) fn pause_for_flood(&self, why: Paused) {
        self.control.pause(why);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.control.vitals.end();
        self.control.change(|state| {
            state.paused = None;
            state.ended = true;
            true
        });
    }
}
