//! The scheduler's view of an assigned partition: its queues and its watermark.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::Record;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::order::OrderKey;
use crate::reports::QueueId;
use crate::run::Task;
use crate::scheduler::queue::Queued;
use crate::source::{Amount, Assignment, Delay, Item};
use crate::summary::SummaryCounters;
use crate::telemetry::TopicMetrics;
use crate::watermark::{Delivery, Watermark};

pub(crate) struct Partition {
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) counters: Arc<SummaryCounters>,
    pub(crate) metrics: Arc<TopicMetrics>,
    watermark: Watermark,
    /// The queues that further records can join, by key.
    pub(crate) queues: FxHashMap<OrderKey, QueueId>,
    /// Records without a key so far: the order's extractor has not determined it yet.
    pub(crate) keyless: Keyless,
    /// The number of queues in flight.
    pub(crate) in_flight: usize,
    /// Queues that wait because the partition has reached its in-flight limit.
    pub(crate) limited: VecDeque<QueueId>,
    /// Queues that wait because their first record is too far ahead, by its delivery.
    ahead: BTreeMap<Delivery, QueueId>,
    /// The first record at which the partition was stopped. The watermark never passes it.
    stopped_at: Option<Delivery>,
    /// Whether the first offset is committed before any record is finished.
    commits_start_offset: bool,
    /// Whether no further records are started, because of a revoke or a shutdown, or because the
    /// partition was stopped at a record.
    pub(crate) draining: bool,
}

/// Records that wait for the order's extractor.
#[derive(Default)]
pub(crate) struct Keyless {
    pub(crate) records: VecDeque<Queued>,
    /// The task that runs the extractor over the first records, and the number of these records.
    pub(crate) task: Option<(Task<()>, usize)>,
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
            stopped_at: None,
            commits_start_offset,
            draining: false,
        }
    }

    /// Registers a delivery. Returns the record with its delivery, and the queues that are no
    /// longer too far ahead because the position was reset.
    pub(crate) fn deliver(
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
                true => self.assignment.advance(offset),
                false => self.assignment.clear_watermark(),
            }
        }
        let mut unblocked = Vec::new();
        if was_reset {
            // Finished records from the offset on are delivered again.
            self.assignment.reset(offset);
            unblocked = self.take_unblocked(max_ahead);
        }
        (Queued { delivery, record, due: due.map(|due| (due, Instant::now())) }, unblocked)
    }

    pub(super) fn delay(&self) -> Option<Delay> {
        self.assignment.delay
    }

    pub(crate) fn reaches_max_ahead(&self, delivery: Delivery, max_ahead: u64) -> bool {
        self.watermark.distance(delivery) >= max_ahead
    }

    /// Parks a queue until the watermark is closer to its first record.
    pub(crate) fn park_ahead(&mut self, queue: QueueId, delivery: Delivery) {
        self.ahead.insert(delivery, queue);
    }

    /// Finishes the record at this offset, with what it hands over, which may advance the watermark.
    /// Returns the queues that are no longer too far ahead.
    pub(crate) fn finish(
        &mut self,
        delivery: Delivery,
        (offset, item): (i64, Option<Item>),
        max_ahead: u64,
    ) -> Vec<QueueId> {
        // A record from before a reset, or behind one that stopped the partition, is delivered
        // again, so its item is dropped.
        let is_repeated = || {
            self.watermark.is_superseded(delivery)
                || self.stopped_at.is_some_and(|stopped_at| delivery >= stopped_at)
        };
        if let (Some(item), Some(sink)) = (item, self.assignment.sink())
            && !is_repeated()
        {
            sink.hold(offset, item);
        }
        let Some(watermark) = self.watermark.finish(delivery) else {
            return Vec::new();
        };
        self.assignment.advance(watermark);
        self.take_unblocked(max_ahead)
    }

    /// Drops what the records behind this one have handed over, at which the partition is stopped. It
    /// would use the budget until a rebalance.
    pub(crate) fn stop_at(&mut self, delivery: Delivery, offset: i64) {
        let first = self.stopped_at.map_or(delivery, |stopped_at| stopped_at.min(delivery));
        self.stopped_at = Some(first);
        self.assignment.sink().inspect(|sink| sink.stop_at(offset));
    }

    /// Takes the queues that are no longer too far ahead.
    pub(crate) fn take_unblocked(&mut self, max_ahead: u64) -> Vec<QueueId> {
        let oldest = self.watermark.oldest();
        let mut taken = Vec::new();
        while let Some(first) = self.ahead.first_entry()
            && first.key().distance_from(oldest) < max_ahead
        {
            taken.push(first.remove());
        }
        taken
    }

    /// Counts records that were dropped before they were finished, and releases their part of the
    /// budget. `stopping` is set during the shutdown.
    pub(crate) fn drop_records(&self, amount: Amount, stopping: bool) {
        let SummaryCounters { unfinished, revoked, .. } = &*self.counters;
        let count = if stopping { unfinished } else { revoked };
        count.add(amount.records);
        self.release(amount);
    }

    /// Takes a part of the budget for a received record.
    pub(crate) fn count_buffered(&self, amount: Amount) {
        self.assignment.usage.add(amount);
        self.assignment.total.add(amount);
    }

    /// Releases the part of the budget that was taken by finished or dropped records.
    pub(crate) fn release(&self, amount: Amount) {
        self.assignment.usage.remove(amount);
        self.assignment.total.remove(amount);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::source::{Sink, Usage};
    use crate::telemetry::ConsumerMetrics;

    /// The offsets of the records whose items are held, and of those whose items are released.
    #[derive(Clone, Default)]
    struct Offsets(Arc<Mutex<(Vec<i64>, Vec<i64>)>>);

    impl Offsets {
        fn with<T>(&self, f: impl FnOnce(&mut Vec<i64>, &mut Vec<i64>) -> T) -> T {
            let mut offsets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (held, released) = &mut *offsets;
            f(held, released)
        }
    }

    impl Sink for Offsets {
        fn hold(&self, offset: i64, _: Item) {
            self.with(|held, _| held.push(offset));
        }

        fn advance(&self, watermark: i64, set_watermark: &dyn Fn()) {
            self.with(|held, released| released.extend(held.extract_if(.., |it| *it < watermark)));
            set_watermark();
        }

        fn reset(&self, offset: i64) {
            self.with(|held, released| [held, released].map(|of| of.retain(|it| *it < offset)));
        }

        fn stop_at(&self, offset: i64) {
            self.with(|held, _| held.retain(|it| *it < offset));
        }

        fn close(&self) {}
    }

    fn finish(partition: &mut Partition, Queued { delivery, record, .. }: Queued) {
        partition.finish(delivery, (record.offset(), Some(Box::new(()))), u64::MAX);
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

    fn partition() -> (Partition, Offsets) {
        let (total, offsets): (Arc<Usage>, Offsets) = Default::default();
        let assignment = Assignment::new("t".into(), 0, total);
        let assignment = Arc::new(assignment.with_sink(offsets.clone()));
        let mut metrics = ConsumerMetrics::new("g".into());
        let metrics = metrics.on_assigned(&assignment, &Arc::default());
        (Partition::new(assignment, Arc::default(), metrics, true), offsets)
    }

    /// Takes the watermark, and the offsets of the records with items that are committed with it.
    fn take((partition, offsets): &(Partition, Offsets)) -> (Option<i64>, Vec<i64>) {
        let released = offsets.with(|_, released| std::mem::take(released));
        (partition.assignment.uncommitted(), released)
    }

    #[test]
    fn reset_drops_items_that_are_not_committed() {
        let mut of = partition();
        deliver_and_finish(&mut of.0, &[10, 11, 12, 11]);
        assert_eq!(take(&of), (Some(12), vec![10, 11]));
    }

    #[test]
    fn items_are_committed_again_up_to_the_offset_committed_before_a_reset() {
        let mut of = partition();
        deliver_and_finish(&mut of.0, &[10, 11]);
        assert_eq!(take(&of), (Some(12), vec![10, 11]));
        of.0.assignment.set_committed(12);
        deliver_and_finish(&mut of.0, &[10, 11]);
        assert_eq!(take(&of), (Some(12), vec![10, 11]));
    }

    #[test]
    fn reset_drops_items_behind_an_unfinished_record() {
        let mut of = partition();
        let unfinished = deliver(&mut of.0, 10);
        deliver_and_finish(&mut of.0, &[11, 12]);
        let again = [11, 12].map(|offset| deliver(&mut of.0, offset));
        finish(&mut of.0, unfinished);
        again.into_iter().for_each(|queued| finish(&mut of.0, queued));
        assert_eq!(take(&of), (Some(13), vec![10, 11, 12]));
    }

    #[test]
    fn items_behind_the_record_that_stops_the_partition_are_dropped() {
        let mut of = partition();
        let [first, stopped] = [10, 11].map(|offset| deliver(&mut of.0, offset));
        deliver_and_finish(&mut of.0, &[12]);
        of.0.stop_at(stopped.delivery, 11);
        deliver_and_finish(&mut of.0, &[13]);
        finish(&mut of.0, first);
        assert_eq!(take(&of), (Some(11), vec![10]));
        assert_eq!(of.1.with(|held, _| held.len()), 0);
    }
}
