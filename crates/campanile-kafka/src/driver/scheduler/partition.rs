//! The scheduler's view of an assigned partition: its queues and its watermark.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::{Coordinates, Output, Record};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::queue::{QueueId, Queued};
use crate::driver::assignment::Assignment;
use crate::driver::budget::Amount;
use crate::driver::delay::Delay;
use crate::driver::task::Task;
use crate::driver::watermark::{Delivery, Watermark};
use crate::order::OrderKey;
use crate::summary::SummaryCounters;
use crate::telemetry::TopicMetrics;
use crate::transaction::RecordOutputs;

pub(super) struct Partition {
    pub(super) assignment: Arc<Assignment>,
    pub(super) counters: Arc<SummaryCounters>,
    pub(super) metrics: Arc<TopicMetrics>,
    watermark: Watermark,
    /// The queues that further records can join, by key.
    pub(super) queues: FxHashMap<OrderKey, QueueId>,
    /// Records without a key so far: the order's extractor has not determined it yet.
    pub(super) keyless: Keyless,
    /// The number of queues in flight.
    pub(super) in_flight: usize,
    /// Queues that wait because the partition has reached its in-flight limit.
    pub(super) limited: VecDeque<QueueId>,
    /// Queues that wait because their first record is too far ahead, by its delivery.
    ahead: BTreeMap<Delivery, QueueId>,
    /// Outputs of finished records that the watermark has not passed yet.
    held_outputs: BTreeMap<Delivery, RecordOutputs>,
    /// The first record at which the partition was stopped. The watermark never passes it.
    stopped_at: Option<Delivery>,
    /// Whether the first offset is committed before any record is finished.
    commits_start_offset: bool,
    /// Whether no further records are started, because of a revoke or a shutdown, or because the
    /// partition was stopped at a record.
    pub(super) draining: bool,
}

/// Records that wait for the order's extractor.
#[derive(Default)]
pub(super) struct Keyless {
    pub(super) records: VecDeque<Queued>,
    /// The task that runs the extractor over the first records, and the number of these records.
    pub(super) task: Option<(Task<()>, usize)>,
}

impl Partition {
    pub(super) fn new(
        assignment: Arc<Assignment>,
        counters: Arc<SummaryCounters>,
        metrics: Arc<TopicMetrics>,
        commits_start_offset: bool,
    ) -> Self {
        Self {
            assignment,
            counters,
            metrics,
            watermark: Watermark::default(),
            queues: FxHashMap::default(),
            keyless: Keyless::default(),
            in_flight: 0,
            limited: VecDeque::new(),
            ahead: BTreeMap::new(),
            held_outputs: BTreeMap::new(),
            stopped_at: None,
            commits_start_offset,
            draining: false,
        }
    }

    /// Registers a delivery. Returns the record with its delivery, and the queues that are no
    /// longer too far ahead because the position was reset.
    pub(super) fn deliver(
        &mut self,
        record: Record,
        due: Option<SystemTime>,
        max_ahead: u64,
    ) -> (Queued, Vec<QueueId>) {
        let offset = record.offset();
        let was_reset = self.watermark.is_reset(offset);
        let delivery = self.watermark.deliver(offset);
        if self.watermark.watermark().is_none() && delivery == self.watermark.oldest() {
            // This is the first record, or the position was reset. A watermark from before the
            // reset would skip records that are delivered again.
            match self.commits_start_offset {
                true => self.assignment.advance(offset, std::iter::empty()),
                false => self.assignment.clear_watermark(),
            }
        }
        let mut unblocked = Vec::new();
        if was_reset {
            // Finished records from the offset on are delivered again.
            self.assignment.reset(offset);
            self.held_outputs.retain(|delivery, _| !self.watermark.is_superseded(*delivery));
            unblocked = self.take_unblocked(max_ahead);
        }
        (Queued { delivery, record, due: due.map(|due| (due, Instant::now())) }, unblocked)
    }

    pub(super) fn delay(&self) -> Option<Delay> {
        self.assignment.delay
    }

    pub(super) fn reaches_max_ahead(&self, delivery: Delivery, max_ahead: u64) -> bool {
        self.watermark.distance(delivery) >= max_ahead
    }

    /// Parks a queue until the watermark is closer to its first record.
    pub(super) fn park_ahead(&mut self, queue: QueueId, delivery: Delivery) {
        self.ahead.insert(delivery, queue);
    }

    /// Finishes a record with these outputs, which may advance the watermark. Returns the queues
    /// that are no longer too far ahead.
    pub(super) fn finish(
        &mut self,
        delivery: Delivery,
        outputs: Option<RecordOutputs>,
        max_ahead: u64,
    ) -> Vec<QueueId> {
        // A record from before a reset, or behind one that stopped the partition, is delivered
        // again, so its outputs are dropped.
        let is_repeated = self.watermark.is_superseded(delivery)
            || self.stopped_at.is_some_and(|stopped_at| delivery >= stopped_at);
        if let Some(outputs) = outputs.filter(|_| !is_repeated) {
            self.held_outputs.insert(delivery, outputs);
        }
        let Some(watermark) = self.watermark.finish(delivery) else {
            return Vec::new();
        };
        let passed = match self.held_outputs.is_empty() {
            true => BTreeMap::new(),
            false => {
                let ahead = self.held_outputs.split_off(&self.watermark.oldest());
                std::mem::replace(&mut self.held_outputs, ahead)
            }
        };
        self.assignment.advance(watermark, passed.into_values());
        self.take_unblocked(max_ahead)
    }

    /// Drops the outputs of the records behind this one, at which the partition is stopped. They would
    /// use the budget until a rebalance.
    pub(super) fn stop_at(&mut self, delivery: Delivery) {
        let first = self.stopped_at.map_or(delivery, |stopped_at| stopped_at.min(delivery));
        self.stopped_at = Some(first);
        self.held_outputs.split_off(&first);
    }

    /// Takes the queues that are no longer too far ahead.
    pub(super) fn take_unblocked(&mut self, max_ahead: u64) -> Vec<QueueId> {
        let oldest = self.watermark.oldest();
        let mut taken = Vec::new();
        while let Some(first) = self.ahead.first_entry()
            && first.key().distance_from(oldest) < max_ahead
        {
            taken.push(first.remove());
        }
        taken
    }

    /// Wraps a record's outputs, which count as used from now on.
    pub(super) fn record_outputs(&self, at: Coordinates, outputs: Vec<Output>) -> RecordOutputs {
        let Assignment { usage, total, .. } = &*self.assignment;
        RecordOutputs::new(at, outputs, [usage.clone(), total.clone()])
    }

    /// Counts records that were dropped before they were finished, and releases their part of the
    /// budget. `stopping` is set during the shutdown.
    pub(super) fn drop_records(&self, amount: Amount, stopping: bool) {
        let SummaryCounters { unfinished, revoked, .. } = &*self.counters;
        let count = if stopping { unfinished } else { revoked };
        count.add(amount.records);
        self.release(amount);
    }

    /// Releases the part of the budget that was taken by finished or dropped records.
    pub(super) fn release(&self, amount: Amount) {
        self.assignment.usage.remove(amount);
        self.assignment.total.remove(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{AssignmentId, Usage};
    use crate::telemetry::ConsumerMetrics;

    fn finish(partition: &mut Partition, Queued { delivery, record, .. }: Queued) {
        let outputs = vec![Output::to("invoices").payload("1")];
        let outputs = partition.record_outputs(record.coordinates().clone(), outputs);
        partition.finish(delivery, Some(outputs), u64::MAX);
    }

    fn deliver(partition: &mut Partition, offset: i64) -> Queued {
        let record = Record::builder("t", 0, offset).build();
        partition.deliver(record, None, u64::MAX).0
    }

    fn deliver_and_finish(partition: &mut Partition, offsets: &[i64]) {
        for &offset in offsets {
            let queued = deliver(partition, offset);
            finish(partition, queued);
        }
    }

    fn partition() -> Partition {
        let total: Arc<Usage> = Arc::default();
        let assignment = Assignment::new(AssignmentId(0), "t".into(), 0, None, total);
        let assignment = Arc::new(assignment);
        let mut metrics = ConsumerMetrics::new("g".into());
        let metrics = metrics.on_assigned(&assignment, &Arc::default());
        Partition::new(assignment, Arc::default(), metrics, true)
    }

    /// Takes the watermark, and the offsets of the records with outputs that are sent with it.
    fn take(partition: &Partition) -> (i64, Vec<i64>) {
        let assignment = &partition.assignment;
        let taken = assignment.pending_outputs.take(|| assignment.uncommitted());
        let (watermark, outputs) = taken.unwrap();
        (watermark, outputs.iter().map(|outputs| outputs.at.offset).collect())
    }

    #[test]
    fn reset_drops_outputs_that_are_not_committed() {
        let mut partition = partition();
        deliver_and_finish(&mut partition, &[10, 11, 12, 11]);
        assert_eq!(take(&partition), (12, vec![10, 11]));
    }

    #[test]
    fn outputs_are_sent_again_up_to_the_offset_committed_before_a_reset() {
        let mut partition = partition();
        deliver_and_finish(&mut partition, &[10, 11]);
        assert_eq!(take(&partition), (12, vec![10, 11]));
        partition.assignment.set_committed(12);
        deliver_and_finish(&mut partition, &[10, 11]);
        assert_eq!(take(&partition), (12, vec![10, 11]));
    }

    #[test]
    fn reset_drops_outputs_behind_an_unfinished_record() {
        let mut partition = partition();
        let unfinished = deliver(&mut partition, 10);
        deliver_and_finish(&mut partition, &[11, 12]);
        let again = [11, 12].map(|offset| deliver(&mut partition, offset));
        finish(&mut partition, unfinished);
        again.into_iter().for_each(|queued| finish(&mut partition, queued));
        assert_eq!(take(&partition), (13, vec![10, 11, 12]));
    }
}
