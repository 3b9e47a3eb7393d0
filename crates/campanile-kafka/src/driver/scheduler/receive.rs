//! Received records: appends each record to the queue of its key.

use campanile_core::Record;

use super::queue::Queued;
use super::{RUN, Scheduler};
use crate::driver::assignment::AssignmentId;
use crate::driver::budget::Amount;
use crate::driver::run::spawn_keying;
use crate::driver::source::Received;
use crate::error::ConsumerError;
use crate::order::{Keying, OrderKey, PARTITION};

impl Scheduler {
    /// Queues received records, which already count as used. Records of partitions that are no
    /// longer consumed are dropped.
    ///
    /// # Errors
    /// Fails if this consumer must not process one of the records.
    pub(in crate::driver) fn received(
        &mut self,
        records: Vec<Received>,
    ) -> Result<(), ConsumerError> {
        let mut checked = Ok(());
        let far = self.far();
        for Received { assignment, record, due } in records {
            let Some(partition) = self.partitions.get_mut(&assignment) else {
                // The partition was revoked before the record reached the scheduler.
                continue;
            };
            if partition.draining {
                partition.release(Amount::of(&record));
                continue;
            }
            self.summary.received += 1;
            let keying = match partition.rung() {
                Some(_) => {
                    checked = checked.and(self.policies.sources.check(&record));
                    Keying::Key(Some(PARTITION))
                }
                None => self.policies.order.keying(&record),
            };
            // The record is delivered even if the check failed: the watermark must not pass it.
            let (queued, before) = partition.deliver(record, due, far);
            match keying {
                Keying::Key(key) => self.enqueue(assignment, key, queued),
                Keying::Extract => {
                    partition.keyless.records.push_back(queued);
                    self.extract_keys(assignment);
                }
            }
            self.list_all(before);
        }
        checked
    }

    /// Appends a record to the queue of its key.
    fn enqueue(&mut self, assignment: AssignmentId, key: Option<OrderKey>, queued: Queued) {
        let Some(partition) = self.partitions.get_mut(&assignment) else {
            return;
        };
        let queue = key.and_then(|key| partition.queues.get(&key));
        match queue.and_then(|&id| self.queues.get_mut(id)) {
            Some(queue) => queue.records.push_back(queued),
            None => {
                let id = self.queues.insert(assignment, key, queued);
                key.map(|key| partition.queues.insert(key, id));
                self.run_queue.push(id);
            }
        }
    }

    /// Starts the order's extractor over the partition's keyless records, unless it is already
    /// running.
    fn extract_keys(&mut self, assignment: AssignmentId) {
        let Some(partition) = self.partitions.get_mut(&assignment) else {
            return;
        };
        let keyless = &mut partition.keyless;
        if keyless.task.is_none() && !keyless.records.is_empty() {
            let records = keyless.records.iter().take(RUN);
            let records: Vec<Record> = records.map(|queued| queued.record.clone()).collect();
            let count = records.len();
            let order = self.policies.order.clone();
            let reports = self.reports.clone();
            let task = spawn_keying(&self.services.runtime, order, records, assignment, reports);
            keyless.task = Some((task, count));
        }
    }

    /// Queues the oldest keyless records of a partition under the keys that the extractor has
    /// returned.
    pub(super) fn keyed(&mut self, assignment: AssignmentId, keys: Vec<OrderKey>) {
        // A draining partition has no keyless records: they were dropped.
        let Some(partition) = self.partitions.get_mut(&assignment).filter(|p| !p.draining) else {
            return;
        };
        partition.keyless.task = None;
        let records: Vec<Queued> = partition.keyless.records.drain(..keys.len()).collect();
        for (queued, key) in records.into_iter().zip(keys) {
            self.enqueue(assignment, Some(key), queued);
        }
        self.extract_keys(assignment);
    }
}
