//! The state that handles and the driver share: pauses, resumes, seeks and shutdowns.

mod status;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::{oneshot, watch};

pub(crate) use self::status::DriverStatus;
use crate::paused::Paused;
use crate::rebalance::RebalanceSender;
use crate::seek::{SeekError, SeekRequest, SeekTo};
use crate::source::Assignment;
use crate::status::ConsumerStage;

pub(crate) struct Control {
    state: watch::Sender<ControlState>,
    driver: AtomicWaker,
    run_gate: Arc<RunGate>,
    status: Arc<DriverStatus>,
    rebalances: RebalanceSender,
}

#[derive(Default)]
pub(crate) struct ControlState {
    pub(crate) paused: Option<Paused>,
    /// The number of resumes.
    resumed: u64,
    /// The paused topics and partitions, whether they are assigned or not.
    paused_targets: HashSet<PauseTarget>,
    /// The number of resumes of a topic or a partition.
    targets_resumed: u64,
    /// Seeks that the driver has not started yet.
    seeks: Vec<SeekRequest>,
    shutdown: Option<Shutdown>,
    pub(crate) ended: bool,
}

/// A topic, or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PauseTarget {
    pub(crate) topic: Arc<str>,
    /// All partitions with `None`.
    pub(crate) partition: Option<i32>,
}

impl ControlState {
    /// Pauses or resumes a partition according to the paused targets.
    fn apply_to(&self, assignment: &Assignment) {
        let is_paused = |partition| {
            let topic = assignment.topic.clone();
            self.paused_targets.contains(&PauseTarget { topic, partition })
        };
        assignment.set_paused(is_paused(None) || is_paused(Some(assignment.partition)));
    }
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
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// While suspended, a run may start only the record that the scheduler has started it for.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }
}

impl Control {
    pub(crate) fn new(status: DriverStatus) -> Self {
        Self {
            state: watch::Sender::default(),
            driver: AtomicWaker::new(),
            run_gate: Arc::default(),
            status: Arc::new(status),
            rebalances: RebalanceSender::default(),
        }
    }

    pub(crate) fn status(&self) -> &Arc<DriverStatus> {
        &self.status
    }

    pub(crate) fn rebalances(&self) -> &RebalanceSender {
        &self.rebalances
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

    /// Pauses a topic or a partition.
    pub(crate) fn pause_target(&self, target: PauseTarget) {
        let PauseTarget { topic, partition } = target.clone();
        if self.change_targets(|state| state.paused_targets.insert(target)) {
            tracing::info!(
                topic = &*topic,
                partition,
                "topic or partition paused through a handle"
            );
        }
    }

    /// Resumes a topic or a partition.
    pub(crate) fn resume_target(&self, target: &PauseTarget) {
        let resumed = self.change_targets(|state| {
            state.targets_resumed += 1;
            state.paused_targets.remove(target)
        });
        if resumed {
            let PauseTarget { topic, partition } = target;
            tracing::info!(topic = &**topic, partition, "topic or partition resumed");
        }
    }

    fn change_targets(&self, change: impl FnOnce(&mut ControlState) -> bool) -> bool {
        self.change(|state| {
            let changed = change(state);
            // Applied under the state's lock, as in `assign`, so that no assignment is missed.
            self.status.assignments().iter().for_each(|assignment| state.apply_to(assignment));
            changed
        })
    }

    /// Requests a seek. If the reply is dropped, the consumer is shutting down.
    pub(crate) fn seek(
        &self,
        topic: &str,
        partition: i32,
        to: SeekTo,
    ) -> oneshot::Receiver<Result<i64, SeekError>> {
        let (reply, result) = oneshot::channel();
        let topic = topic.into();
        self.change(|state| {
            match self.status.stage() {
                _ if state.ended => return false,
                // Serving may never start, and the request would not be answered.
                ConsumerStage::Starting => drop(reply.send(Err(SeekError::NotAssigned))),
                _ => state.seeks.push(SeekRequest { topic, partition, to, reply }),
            }
            true
        });
        result
    }

    /// Adds assignments, and pauses those that are to be paused.
    fn assign(&self, assignments: &[Arc<Assignment>]) {
        self.state.send_if_modified(|state| {
            assignments.iter().for_each(|assignment| state.apply_to(assignment));
            self.status.assign(assignments);
            false
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

    fn change(&self, change: impl FnOnce(&mut ControlState) -> bool) -> bool {
        let changed = self.state.send_if_modified(|state| {
            let changed = change(state);
            // Set under the state's lock, so that both change in the same order.
            self.run_gate.paused.store(state.paused.is_some(), Ordering::Release);
            changed
        });
        if changed {
            self.driver.wake();
        }
        changed
    }
}

/// The driver's half of the control. Serving has ended once it is dropped.
pub(crate) struct DriverControl {
    control: Arc<Control>,
    /// The pause state that was last logged.
    paused: bool,
    resumed: u64,
    targets_resumed: u64,
    shutdown: Option<Shutdown>,
}

/// What was resumed since the last call of [`DriverControl::poll_resumed`].
pub(crate) struct Resumed {
    pub(crate) consumer: bool,
    /// Whether a topic or a partition was resumed.
    pub(crate) target: bool,
}

impl DriverControl {
    pub(crate) fn new(status: DriverStatus) -> Self {
        Self::of(Arc::new(Control::new(status)))
    }

    pub(crate) fn of(control: Arc<Control>) -> Self {
        Self { control, paused: false, resumed: 0, targets_resumed: 0, shutdown: None }
    }

    pub(crate) fn shared(&self) -> &Arc<Control> {
        &self.control
    }

    pub(crate) fn status(&self) -> &Arc<DriverStatus> {
        self.control.status()
    }

    /// Adds partitions that the group has assigned, and pauses those that are to be paused.
    pub(crate) fn assign(&self, assignments: &[Arc<Assignment>]) {
        self.control.assign(assignments);
        self.control.rebalances.send_assigned(assignments);
    }

    /// Replaces the assignment of a partition that was sought, which is no rebalance.
    pub(crate) fn reassign(&self, new: &Arc<Assignment>) {
        self.control.assign(std::slice::from_ref(new));
    }

    /// Takes the seeks that were requested since the last call.
    pub(crate) fn take_seeks(&self) -> Vec<SeekRequest> {
        let mut seeks = Vec::new();
        if !self.control.state.borrow().seeks.is_empty() {
            self.control.state.send_if_modified(|state| {
                seeks.append(&mut state.seeks);
                false
            });
        }
        seeks
    }

    /// Reports partitions that are drained and committed, or lost, and are released now.
    pub(crate) fn report_released(&self, assignments: &[Arc<Assignment>], lost: bool) {
        self.control.rebalances.send_revoked(assignments, lost);
    }

    /// While the consumer is paused, no record is started and no dead letter is published.
    pub(crate) fn is_paused(&self) -> bool {
        self.control.run_gate.is_paused()
    }

    /// Shares the flags that runs check before each record.
    pub(crate) fn run_gate(&self) -> Arc<RunGate> {
        self.control.run_gate.clone()
    }

    /// Sets whether runs stop before their next record.
    pub(crate) fn suspend(&self, suspended: bool) {
        self.control.run_gate.suspended.store(suspended, Ordering::Release);
    }

    /// Takes what was resumed since the last call.
    pub(crate) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Resumed {
        // Register the waker before reading the state, so that no change is missed.
        self.control.driver.register(cx.waker());
        let state = self.control.state.borrow();
        let resumed = Resumed {
            consumer: state.resumed != self.resumed,
            target: state.targets_resumed != self.targets_resumed,
        };
        self.resumed = state.resumed;
        self.targets_resumed = state.targets_resumed;
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

    /// Reads how serving ends, if this has changed since the last call.
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
        self.control.rebalances.end();
        self.control.change(|state| {
            state.paused = None;
            state.seeks.clear();
            state.ended = true;
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(topic: &str, partition: Option<i32>) -> PauseTarget {
        PauseTarget { topic: topic.into(), partition }
    }

    /// Assigns this partition.
    fn assign(driver_control: &DriverControl, topic: &str, partition: i32) -> Arc<Assignment> {
        let assignment = Assignment::new(topic.into(), partition, Arc::default());
        let assignment = Arc::new(assignment);
        driver_control.assign(std::slice::from_ref(&assignment));
        assignment
    }

    #[test]
    fn pauses_of_topic_and_partition_are_independent() {
        let driver_control = DriverControl::new(DriverStatus::new(Duration::MAX));
        let control = driver_control.shared();
        let partitions = [0, 1].map(|partition| assign(&driver_control, "t", partition));
        let other = assign(&driver_control, "u", 0);
        let paused = || [0, 1].map(|index: usize| partitions[index].is_paused());
        control.pause_target(target("t", Some(0)));
        assert_eq!(paused(), [true, false]);
        control.pause_target(target("t", None));
        assert_eq!(paused(), [true, true]);
        control.resume_target(&target("t", None));
        assert_eq!(paused(), [true, false]);
        control.pause(Paused::ByHandle);
        control.resume();
        control.resume_target(&target("t", Some(1)));
        assert_eq!(paused(), [true, false]);
        control.resume_target(&target("t", Some(0)));
        assert_eq!(paused(), [false, false]);
        assert!(!other.is_paused());
    }

    #[test]
    fn partition_is_still_paused_when_it_is_assigned_again() {
        let driver_control = DriverControl::new(DriverStatus::new(Duration::MAX));
        driver_control.shared().pause_target(target("t", Some(0)));
        let first = assign(&driver_control, "t", 0);
        assert!(first.is_paused());
        first.revoke();
        driver_control.status().revoke(false);
        assert!(assign(&driver_control, "t", 0).is_paused());
        assert!(!assign(&driver_control, "t", 1).is_paused());
    }
}
