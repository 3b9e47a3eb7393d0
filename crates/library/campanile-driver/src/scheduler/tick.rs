//! The scheduler's work once a second: logs stalled partitions and updates the status.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::control::DriverStatus;
use crate::error::origin;
use crate::reports::QueueId;
use crate::scheduler::Scheduler;
use crate::scheduler::last_error::{WAITS_FOR_DEPENDENCY, WAITS_FOR_STORE};
use crate::scheduler::queue::QueueState;
use crate::scheduler::stalls::{Activity, Resolved, StallAge};
use crate::source::AssignmentId;

/// How long the store may take to record the completion of a handler before it counts as unavailable: several
/// times what a slow answer takes, and less than a lock lasts.
const RECORDING_LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of stalls that are logged at once, so that a thousand partitions do not fill
/// a log.
const MAX_LOGGED: usize = 10;

impl Scheduler {
    /// Logs stalled partitions and updates the status.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        let (mut logged, mut omitted) = (0, 0);
        let mut is_completion_overdue = false;
        for (assignment, id) in self.oldest() {
            let (activity, age) = self.observe(assignment, id, now);
            is_completion_overdue |=
                activity == Activity::Recording && age.activity >= RECORDING_LIMIT;
            if !self.stalls.is_due(assignment, age) {
                continue;
            }
            let Some(waits_for) = self.stall_reason(id) else {
                continue;
            };
            self.stalls.mark_logged(assignment, age);
            if logged < MAX_LOGGED {
                logged += 1;
                self.log_stall(id, waits_for, age);
            } else {
                omitted += 1;
            }
        }
        if omitted > 0 {
            tracing::warn!(partitions = omitted, "further stalled partitions omitted");
        }
        let (resolved, oldest) = self.stalls.finish_round(now);
        self.log_resolved(&resolved);
        let store_down = self.breaker.is_store_unavailable() || is_completion_overdue;
        let Self { outages, queues, .. } = self;
        let unavailable = outages.unavailable(|id| queues.is_waiting_for_dependency(id));
        self.status().update(store_down, unavailable, oldest);
    }

    pub(crate) fn status(&self) -> &DriverStatus {
        self.control.status()
    }

    /// Finds the queue with the oldest unfinished record of each partition. Leaves out partitions in
    /// which that record only waits for its delay.
    fn oldest(&mut self) -> HashMap<AssignmentId, QueueId> {
        let mut oldest: HashMap<AssignmentId, (i64, QueueId)> = HashMap::new();
        for (id, queue) in self.queues.iter_mut() {
            let offset = queue.first().record.offset();
            let first = oldest.entry(queue.assignment).or_insert((offset, id));
            if offset < first.0 {
                *first = (offset, id);
            }
        }
        // Filtered last, because the records behind a delayed one may wait for it.
        oldest.retain(|_, (_, id)| !self.queue(*id).is_delayed());
        oldest.into_iter().map(|(assignment, (_, id))| (assignment, id)).collect()
    }

    fn observe(
        &mut self,
        assignment: AssignmentId,
        id: QueueId,
        now: Instant,
    ) -> (Activity, StallAge) {
        let queue = self.queue(id);
        let failures =
            queue.attempts.last_error.as_ref().map_or(0, |last_error| last_error.failures);
        let activity = match queue.state {
            QueueState::Waiting(timer) => Activity::Waiting(timer),
            _ if queue.is_recording() => Activity::Recording,
            _ if queue.is_running() => Activity::Running { failures },
            _ => Activity::Due,
        };
        let offset = queue.first().record.offset();
        (activity, self.stalls.observe(assignment, offset, activity, now))
    }

    /// Finds what the record waits for, unless the wait is expected.
    fn stall_reason(&mut self, id: QueueId) -> Option<&'static str> {
        if self.partition(id).draining {
            return None;
        }
        let free = self.in_flight < self.config.max_in_flight;
        let (paused, store_unavailable) = (self.control.is_paused(), self.breaker.is_open());
        let record = self.record(id);
        let route = self.router.route_of(&record);
        let dependency_unavailable = self.outages.concern(route);
        let queue = self.queue(id);
        match &queue.state {
            QueueState::Running(_) if queue.is_recording() => {
                Some("the store, to record its completion")
            }
            QueueState::Running(_) => Some("its handler"),
            QueueState::NotReady { .. } => Some("its service to be ready"),
            QueueState::Waiting(_) | QueueState::WaitingForDependency => {
                queue.attempts.last_error.as_ref().map(|last_error| last_error.waits_for)
            }
            QueueState::Paused => Some("its partition or topic to be resumed"),
            _ if paused => Some("the consumer to be resumed"),
            _ if store_unavailable => Some(WAITS_FOR_STORE),
            _ if dependency_unavailable => Some(WAITS_FOR_DEPENDENCY),
            // The record waits because the in-flight limit is reached.
            _ if !free => None,
            _ => Some("its service to be ready"),
        }
    }

    fn log_stall(&mut self, id: QueueId, waits_for: &str, age: StallAge) {
        let assignment = &self.partition(id).assignment;
        let lag = assignment.offset_range.lag(assignment.watermark());
        let queue = self.queue(id);
        let record = &queue.first().record;
        tracing::warn!(
            record = %record.coordinates(),
            origin = origin(record),
            lag,
            stands_still = ?age.oldest,
            waits_for,
            waits = ?age.activity,
            error = queue.attempts.last_error.as_ref().map(|last_error| &*last_error.error),
            "a partition is stalled: its oldest record is not finished"
        );
    }

    fn log_resolved(&self, resolved: &[Resolved]) {
        for (assignment, after) in resolved {
            // A revoked partition belongs to another consumer. A stopped one makes no progress.
            if let Some(partition) = self.partitions.get(assignment).filter(|p| !p.draining) {
                tracing::info!(
                    partition = %partition.assignment,
                    ?after,
                    "a partition is no longer stalled"
                );
            }
        }
    }
}
