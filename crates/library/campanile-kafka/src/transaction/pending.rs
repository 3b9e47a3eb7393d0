//! Outputs held in memory until their transaction is committed.

use std::any::Any;
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::{Coordinates, Output};

use campanile_driver::source::{Amount, Assignment, Item, Sink, Usage};

/// The outputs of one processed record. They count in the budget until this is dropped.
pub(crate) struct RecordOutputs {
    pub(crate) at: Coordinates,
    pub(crate) messages: Vec<Output>,
    amount: Amount,
    /// The usage of the partition, and of all partitions.
    usages: [Arc<Usage>; 2],
}

impl RecordOutputs {
    fn new(at: Coordinates, messages: Vec<Output>, usages: [Arc<Usage>; 2]) -> Self {
        let bytes = messages.iter().map(Output::size).sum::<usize>() as u64;
        let amount = Amount { records: 1, bytes };
        usages.iter().for_each(|usage| usage.add_held(amount));
        Self { at, messages, amount, usages }
    }
}

impl Drop for RecordOutputs {
    fn drop(&mut self) {
        self.usages.iter().for_each(|usage| usage.remove_held(self.amount));
    }
}

/// The outputs of one assignment of a partition, as long as no transaction contains them.
pub(crate) struct PendingOutputs {
    topic: Arc<str>,
    partition: i32,
    usages: [Arc<Usage>; 2],
    state: Mutex<PendingState>,
}

#[derive(Default)]
struct PendingState {
    /// Those of the records that the watermark has not passed yet, by offset.
    held: BTreeMap<i64, RecordOutputs>,
    /// Those of the records below the watermark.
    outputs: Vec<RecordOutputs>,
    /// The lowest offset to which the position was reset since the outputs were last taken.
    reset_to: Option<i64>,
    closed: bool,
}

impl PendingOutputs {
    /// Adds a sink for outputs to the assignment.
    pub(crate) fn add_to(assignment: Assignment) -> Assignment {
        let Assignment { topic, partition, usage, total, .. } = &assignment;
        let (topic, partition) = (topic.clone(), *partition);
        let usages = [usage.clone(), total.clone()];
        assignment.with_sink(Self { topic, partition, usages, state: Mutex::default() })
    }

    /// The outputs of an assignment, to which they were [added](Self::add_to).
    pub(crate) fn of(assignment: &Assignment) -> &Self {
        let sink: &dyn Any = assignment.sink().expect("each assignment has outputs");
        sink.downcast_ref().expect("the sink is that of outputs")
    }

    /// Takes all outputs of records below the watermark, with the watermark. Takes nothing if there is
    /// no watermark.
    pub(crate) fn take<M>(
        &self,
        watermark: impl FnOnce() -> Option<M>,
    ) -> Option<(M, Vec<RecordOutputs>)> {
        let mut state = self.state();
        let watermark = watermark()?;
        state.reset_to = None;
        Some((watermark, mem::take(&mut state.outputs)))
    }

    /// Takes the lowest offset to which the position was reset since the outputs were last taken.
    pub(crate) fn take_reset(&self) -> Option<i64> {
        self.state().reset_to.take()
    }

    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for PendingOutputs {
    fn hold(&self, offset: i64, item: Item) {
        let messages = item.downcast().expect("the route of transactions hands over outputs");
        let mut state = self.state();
        // After a revoke, the partition's next owner produces these outputs.
        if !state.closed {
            let Self { topic, partition, usages, .. } = self;
            let at = Coordinates { topic: topic.clone(), partition: *partition, offset };
            state.held.insert(offset, RecordOutputs::new(at, *messages, usages.clone()));
        }
    }

    fn advance(&self, watermark: i64, set_watermark: &dyn Fn()) {
        let mut state = self.state();
        if !state.closed {
            let ahead = state.held.split_off(&watermark);
            let passed = mem::replace(&mut state.held, ahead);
            state.outputs.extend(passed.into_values());
            set_watermark();
        }
    }

    fn reset(&self, offset: i64) {
        let mut state = self.state();
        state.held.split_off(&offset);
        state.outputs.retain(|outputs| outputs.at.offset < offset);
        state.reset_to = Some(state.reset_to.map_or(offset, |lower| lower.min(offset)));
    }

    fn stop_at(&self, offset: i64) {
        self.state().held.split_off(&offset);
    }

    fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.held.clear();
        state.outputs.clear();
    }
}

#[cfg(test)]
mod tests {
    use campanile_driver::SourceContext;

    use super::*;

    fn assignment() -> Assignment {
        PendingOutputs::add_to(SourceContext::default().assignment("payments", 0))
    }

    fn hold(assignment: &Assignment, offsets: &[i64]) {
        for &offset in offsets {
            let messages = vec![Output::to("invoices").payload("12345")];
            PendingOutputs::of(assignment).hold(offset, Box::new(messages));
        }
    }

    /// Takes the watermark, and the offsets of the records with outputs that are sent with it.
    fn take(assignment: &Assignment) -> (i64, Vec<i64>) {
        let taken = PendingOutputs::of(assignment).take(|| assignment.uncommitted());
        let (watermark, outputs) = taken.unwrap();
        (watermark, outputs.iter().map(|outputs| outputs.at.offset).collect())
    }

    #[test]
    fn outputs_are_sent_with_the_watermark_that_passes_them() {
        let assignment = assignment();
        hold(&assignment, &[7, 9, 8]);
        assignment.advance(9);
        assert_eq!(take(&assignment), (9, vec![7, 8]));
        assignment.advance(10);
        assert_eq!(take(&assignment), (10, vec![9]));
    }

    #[test]
    fn outputs_count_in_the_budget_until_dropped() {
        let assignment = assignment();
        hold(&assignment, &[7]);
        assignment.advance(8);
        let usage = || [&assignment.usage, &assignment.total].map(|usage| usage.total());
        assert!(usage().iter().all(|used| used.records == 1 && used.bytes >= 5), "{:?}", usage());
        take(&assignment);
        assert_eq!(usage(), [Amount::default(); 2]);
    }

    #[test]
    fn outputs_after_close_are_dropped() {
        let assignment = assignment();
        hold(&assignment, &[7, 8]);
        assignment.advance(8);
        assignment.close();
        hold(&assignment, &[9]);
        assignment.advance(10);
        assert_eq!(take(&assignment), (8, vec![]));
        assert_eq!(assignment.usage.total(), Amount::default());
    }

    #[test]
    fn outputs_behind_the_stop_or_from_a_reset_on_are_dropped() {
        let assignment = assignment();
        hold(&assignment, &[7, 8, 9, 10]);
        PendingOutputs::of(&assignment).stop_at(10);
        assignment.advance(9);
        assignment.reset(8);
        hold(&assignment, &[8]);
        assignment.advance(10);
        assert_eq!(take(&assignment), (10, vec![7, 8]));
    }
}
