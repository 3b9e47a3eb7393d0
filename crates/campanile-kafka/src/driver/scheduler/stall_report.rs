//! The scheduler's work once a second: logs stalled partitions and updates the status.

use std::collections::HashMap;

use tokio::time::Instant;

use super::Scheduler;
use super::queue::{QueueId, State};
use super::stalls::{Doing, Moved, Still};
use super::trouble::STORE;
use crate::driver::assignment::AssignmentId;
use crate::driver::vitals::Vitals;
use crate::retry_topics::origin;

/// The maximum number of stalls that are logged at once, so that a thousand partitions do not fill
/// a log.
const MOST: usize = 10;

impl Scheduler {
    /// Logs stalled partitions and updates the status.
    pub(in crate::driver) fn tick(&mut self) {
        let now = Instant::now();
        let (mut logged, mut omitted) = (0, 0);
        for (assignment, id) in self.oldest() {
            let still = self.see(assignment, id, now);
            if !self.stalls.is_due(assignment, still) {
                continue;
            }
            let Some(waits_for) = self.stalled_by(id) else {
                continue;
            };
            self.stalls.reported(assignment, still);
            if logged < MOST {
                logged += 1;
                self.log_stall(id, waits_for, still);
            } else {
                omitted += 1;
            }
        }
        if omitted > 0 {
            tracing::warn!(partitions = omitted, "further stalled partitions omitted");
        }
        let (moved, oldest) = self.stalls.end(now);
        self.log_moved(&moved);
        self.policies.retentions.go_on();
        self.vitals().update(self.breaker.is_store_unavailable(), oldest);
    }

    pub(in crate::driver) fn vitals(&self) -> &Vitals {
        self.switch.vitals()
    }

    /// Compares the topic's retention with the time that the entries of its records are kept, once
    /// that time is known.
    pub(super) fn compare_retention(&mut self, id: QueueId) {
        let record = &self.queue(id).first().record;
        // Without an idempotency layer this time stays unknown.
        if let Some(kept) = record.entry_kept() {
            let topic = record.coordinates().topic.clone();
            self.partition(id).retention_seen = true;
            self.policies.retentions.see(&topic, kept);
        }
    }

    /// Finds the queue with the oldest unfinished record of each partition.
    fn oldest(&mut self) -> HashMap<AssignmentId, QueueId> {
        let mut oldest: HashMap<AssignmentId, (i64, QueueId)> = HashMap::new();
        for (id, queue) in self.queues.iter_mut() {
            let offset = queue.first().record.offset();
            let first = oldest.entry(queue.assignment).or_insert((offset, id));
            if offset < first.0 {
                *first = (offset, id);
            }
        }
        oldest.into_iter().map(|(assignment, (_, id))| (assignment, id)).collect()
    }

    fn see(&mut self, assignment: AssignmentId, id: QueueId, now: Instant) -> Still {
        let queue = self.queue(id);
        let troubles = queue.head.trouble.as_ref().map_or(0, |trouble| trouble.times);
        let doing = match queue.state {
            State::Waiting(timer) => Doing::Waiting(timer),
            _ if queue.is_running() => Doing::Running { troubles },
            _ => Doing::Due,
        };
        let offset = queue.first().record.offset();
        self.stalls.see(assignment, offset, doing, now)
    }

    /// Returns what the record waits for, or `None` if the wait is expected.
    fn stalled_by(&mut self, id: QueueId) -> Option<&'static str> {
        if self.partition(id).draining {
            return None;
        }
        let free = self.in_flight < self.policies.max_in_flight;
        let (paused, store_unavailable) = (self.switch.is_paused(), self.breaker.is_open());
        let queue = self.queue(id);
        match &queue.state {
            State::Running(_) => Some("its handler"),
            State::NotReady { .. } => Some("its service to be ready"),
            // A record without trouble comes from a retry topic and is not due yet.
            State::Waiting(_) => queue.head.trouble.as_ref().map(|trouble| trouble.waits_for),
            _ if paused => Some("the consumer to be resumed"),
            _ if store_unavailable => Some(STORE),
            // The record waits because the in-flight limit is reached.
            _ if !free => None,
            _ => Some("its service to be ready"),
        }
    }

    fn log_stall(&mut self, id: QueueId, waits_for: &str, still: Still) {
        let assignment = &self.partition(id).assignment;
        let lag = assignment.extent.lag(assignment.watermark());
        let queue = self.queue(id);
        let record = &queue.first().record;
        tracing::warn!(
            record = %record.coordinates(),
            origin = origin(record),
            lag,
            stands_still = ?still.oldest,
            waits_for,
            waits = ?still.doing,
            error = queue.head.trouble.as_ref().map(|trouble| &*trouble.error),
            "a partition is stalled: its oldest record is not finished"
        );
    }

    fn log_moved(&self, moved: &[Moved]) {
        for (assignment, after) in moved {
            // A revoked partition belongs to another consumer.
            if let Some(partition) = self.partitions.get(assignment) {
                tracing::info!(
                    partition = %partition.assignment,
                    ?after,
                    "a partition is no longer stalled"
                );
            }
        }
    }
}
