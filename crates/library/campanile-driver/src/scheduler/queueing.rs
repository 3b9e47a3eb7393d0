//! Received records: appends each record to the queue of its key.

use std::time::SystemTime;

use campanile_core::Record;

use crate::error::{ConsumerError, origin};
use crate::order::{OrderKey, OrderKeySource, SHARED_KEY};
use crate::reports::Report;
use crate::run::Task;
use crate::scheduler::queue::Queued;
use crate::scheduler::{MAX_RUN_LEN, Scheduler};
use crate::skip_at::SkipAt;
use crate::source::{Amount, AssignmentId, Received};

impl Scheduler {
    /// Queues received records. Records of partitions that are no longer consumed are dropped.
    ///
    /// # Errors
    /// Fails if this consumer must not process one of the records.
    pub(crate) fn on_received(&mut self, records: Vec<Received>) -> Result<(), ConsumerError> {
        let mut checked = Ok(());
        let max_ahead = self.max_ahead();
        for Received { assignment, record, due } in records {
            let Some(partition) = self.partitions.get_mut(&assignment) else {
                // The partition was revoked before the record reached the scheduler.
                continue;
            };
            if partition.draining {
                continue;
            }
            partition.count_buffered(Amount::of(&record));
            partition.counters.received.add(1);
            let is_here = |at: &&SkipAt| at.coordinates == *record.coordinates();
            let mut requested = self.config.skip_at.iter().filter(is_here).peekable();
            if requested.peek().is_some() {
                let topic_id = partition.assignment.log_id();
                let is_recreated = partition.assignment.replaced_log_id.get().is_some();
                let is_topic = |at: &SkipAt| match &at.topic_id {
                    Some(id) => Some(id) == topic_id,
                    None => !is_recreated,
                };
                if requested.any(is_topic) {
                    self.skip_unprocessed(assignment, record, due);
                    continue;
                }
                tracing::warn!(
                    record = %record.coordinates(),
                    topic_id = topic_id.map(|id| &**id),
                    "record not skipped, although `Consumer::skip_at` requests it: its topic was \
                     recreated, or does not have the requested id"
                );
            }
            let key_source = match partition.delay() {
                Some(_) => {
                    if checked.is_ok() {
                        checked = self.config.epilogue.check_delayed(&record);
                    }
                    OrderKeySource::Key(Some(SHARED_KEY))
                }
                None => self.config.order.key_source(&record),
            };
            // The record is delivered even if the check failed: the watermark must not pass it.
            let (queued, before) = partition.deliver(record, due, max_ahead);
            match key_source {
                OrderKeySource::Key(key) => self.queue_record(assignment, key, queued),
                OrderKeySource::Extract => {
                    partition.keyless.records.push_back(queued);
                    self.extract_keys(assignment);
                }
            }
            self.enqueue_all(before);
        }
        checked
    }

    /// Finishes a record without starting it, as the user has requested for its coordinates.
    fn skip_unprocessed(
        &mut self,
        assignment: AssignmentId,
        record: Record,
        due: Option<SystemTime>,
    ) {
        tracing::warn!(
            record = %record.coordinates(),
            origin = origin(&record),
            "record skipped without processing, as `Consumer::skip_at` requests; its offset is \
             committed after the records before it"
        );
        let max_ahead = self.max_ahead();
        if let Some(partition) = self.partitions.get_mut(&assignment) {
            partition.counters.skipped.add(1);
            let (amount, offset) = (Amount::of(&record), record.offset());
            let (Queued { delivery, .. }, mut unblocked) =
                partition.deliver(record, due, max_ahead);
            unblocked.extend(partition.finish(delivery, (offset, None), max_ahead));
            partition.release(amount);
            self.enqueue_all(unblocked);
        }
    }

    /// Appends a record to the queue of its key.
    fn queue_record(&mut self, assignment: AssignmentId, key: Option<OrderKey>, queued: Queued) {
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

    /// Spawns a task that runs the order's extractor over the partition's keyless records, unless one is
    /// already running.
    fn extract_keys(&mut self, assignment: AssignmentId) {
        let Some(partition) = self.partitions.get_mut(&assignment) else {
            return;
        };
        let keyless = &mut partition.keyless;
        if keyless.task.is_none() && !keyless.records.is_empty() {
            let records = keyless.records.iter().take(MAX_RUN_LEN);
            let records: Vec<Record> = records.map(|queued| queued.record.clone()).collect();
            let count = records.len();
            let config = self.config.clone();
            let reports = self.reports.clone();
            let task = Task::spawn_on(&self.runtime, async move {
                let keys = records.iter().map(|record| config.order.extract(record)).collect();
                reports.send(Report::KeysExtracted { assignment, keys });
            });
            keyless.task = Some((task, count));
        }
    }

    /// Queues the oldest keyless records of a partition under the keys that the extractor has
    /// returned.
    pub(crate) fn on_keys_extracted(&mut self, assignment: AssignmentId, keys: Vec<OrderKey>) {
        // A draining partition has no keyless records: they were dropped.
        let Some(partition) = self.partitions.get_mut(&assignment).filter(|p| !p.draining) else {
            return;
        };
        partition.keyless.task = None;
        let records: Vec<Queued> = partition.keyless.records.drain(..keys.len()).collect();
        for (queued, key) in records.into_iter().zip(keys) {
            self.queue_record(assignment, Some(key), queued);
        }
        self.extract_keys(assignment);
    }
}
