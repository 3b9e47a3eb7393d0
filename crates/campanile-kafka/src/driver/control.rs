//! The state that handles and the driver share: pauses, resumes and shutdowns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::watch;

use super::status::DriverStatus;
use crate::handle::Paused;

pub(crate) struct Control {
    state: watch::Sender<ControlState>,
    driver: AtomicWaker,
    run_gate: Arc<RunGate>,
    status: Arc<DriverStatus>,
}

#[derive(Default)]
pub(crate) struct ControlState {
    pub(crate) paused: Option<Paused>,
    /// The number of resumes.
    pub(crate) resumed: u64,
    shutdown: Option<Shutdown>,
    pub(crate) ended: bool,
}

/// How serving ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shutdown {
    /// Records in flight may finish within the drain timeout.
    Graceful,
    /// Records in flight are dropped.
    Now,
}

/// Flags that keep runs from starting their next record.
#[derive(Default)]
pub(crate) struct RunGate {
    paused: AtomicBool,
    suspended: AtomicBool,
}

impl RunGate {
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Returns whether a run may start only the record that the scheduler has started it for.
    pub(super) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }
}

impl Control {
    pub(crate) fn status(&self) -> &Arc<DriverStatus> {
        &self.status
    }

    pub(crate) fn state(&self) -> &watch::Sender<ControlState> {
        &self.state
    }

    /// Pauses the consumer. A flood replaces a pause by handle, but not the other way round.
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

    /// Shuts the consumer down. A later call can only speed up the shutdown.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        self.change(|state| {
            let changes = !state.ended && state.shutdown < Some(how);
            if changes {
                state.shutdown = Some(how);
            }
            changes
        });
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.state.borrow().shutdown.is_some()
    }

    fn change(&self, change: impl FnOnce(&mut ControlState) -> bool) {
        let changed = self.state.send_if_modified(|state| {
            let changed = change(state);
            // Set under the state's lock, so that both change in the same order.
            self.run_gate.paused.store(state.paused.is_some(), Ordering::Release);
            changed
        });
        if changed {
            self.driver.wake();
        }
    }
}

/// The driver's half of the control. Serving has ended once it is dropped.
pub(crate) struct DriverControl {
    control: Arc<Control>,
    /// The pause state that was last logged.
    paused: bool,
    resumed: u64,
    shutdown: Option<Shutdown>,
}

impl DriverControl {
    pub(crate) fn new(status: DriverStatus) -> Self {
        let control = Control {
            state: watch::Sender::default(),
            driver: AtomicWaker::new(),
            run_gate: Arc::default(),
            status: Arc::new(status),
        };
        Self { control: Arc::new(control), paused: false, resumed: 0, shutdown: None }
    }

    pub(crate) fn shared(&self) -> &Arc<Control> {
        &self.control
    }

    pub(crate) fn status(&self) -> &Arc<DriverStatus> {
        self.control.status()
    }

    /// Returns whether the consumer is paused. No record is started and no dead letter is published
    /// then.
    pub(super) fn is_paused(&self) -> bool {
        self.control.run_gate.is_paused()
    }

    /// Returns the flags that runs check before each record.
    pub(super) fn run_gate(&self) -> Arc<RunGate> {
        self.control.run_gate.clone()
    }

    /// Sets whether runs stop before their next record.
    pub(super) fn suspend(&self, suspended: bool) {
        self.control.run_gate.suspended.store(suspended, Ordering::Release);
    }

    /// Returns whether the consumer was resumed since the last call.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> bool {
        // Register the waker before reading the state, so that no change is missed.
        self.control.driver.register(cx.waker());
        let state = self.control.state.borrow();
        let resumed = state.resumed != self.resumed;
        self.resumed = state.resumed;
        let paused = state.paused.is_some();
        if paused != self.paused {
            self.paused = paused;
            match &state.paused {
                // A flood is logged where it is detected.
                Some(Paused::ByHandle) => tracing::info!("consumer paused through its handle"),
                Some(Paused::Flood { .. }) => {}
                None => tracing::info!("consumer resumed"),
            }
        }
        resumed
    }

    /// Returns how serving ends, if this has changed since the last call.
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

impl Drop for DriverControl {
    fn drop(&mut self) {
        self.control.status.end();
        self.control.change(|state| {
            state.paused = None;
            state.ended = true;
            true
        });
    }
}
