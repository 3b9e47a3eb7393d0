//! Outputs held in memory until their transaction is committed.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::{Coordinates, Output};

use crate::driver::{Amount, Usage};

/// The outputs of one processed record. They count in the budget until this is dropped.
pub(crate) struct RecordOutputs {
    pub(crate) at: Coordinates,
    pub(crate) messages: Vec<Output>,
    amount: Amount,
    /// The usage of the partition, and of all partitions.
    usages: [Arc<Usage>; 2],
}

impl RecordOutputs {
    pub(crate) fn new(at: Coordinates, messages: Vec<Output>, usages: [Arc<Usage>; 2]) -> Self {
        let bytes = messages.iter().map(Output::size).sum::<usize>() as u64;
        let amount = Amount { records: 1, bytes };
        usages.iter().for_each(|usage| usage.add_outputs(amount));
        Self { at, messages, amount, usages }
    }
}

impl Drop for RecordOutputs {
    fn drop(&mut self) {
        self.usages.iter().for_each(|usage| usage.remove_outputs(self.amount));
    }
}

/// The outputs of one assignment of a partition: those of the records below its watermark, as long as
/// no transaction contains them.
#[derive(Default)]
pub(crate) struct PendingOutputs(Mutex<State>);

#[derive(Default)]
struct State {
    outputs: Vec<RecordOutputs>,
    /// The lowest offset to which the position was reset since the outputs were last taken.
    reset_to: Option<i64>,
    closed: bool,
}

impl PendingOutputs {
    /// Adds these outputs and moves the watermark in one step, so that [`take`](Self::take) sees
    /// either both or neither.
    pub(crate) fn put(
        &self,
        outputs: impl IntoIterator<Item = RecordOutputs>,
        set_watermark: impl FnOnce(),
    ) {
        let mut state = self.state();
        // After a revoke, the partition's next owner produces these outputs.
        if !state.closed {
            state.outputs.extend(outputs);
            set_watermark();
        }
    }

    /// Takes all outputs, with the watermark that they belong to. Takes nothing if there is no
    /// watermark.
    pub(crate) fn take<M>(
        &self,
        watermark: impl FnOnce() -> Option<M>,
    ) -> Option<(M, Vec<RecordOutputs>)> {
        let mut state = self.state();
        let watermark = watermark()?;
        state.reset_to = None;
        Some((watermark, mem::take(&mut state.outputs)))
    }

    /// Drops the outputs of records from this offset on, since the position was reset to it.
    pub(crate) fn reset(&self, offset: i64) {
        let mut state = self.state();
        state.outputs.retain(|outputs| outputs.at.offset < offset);
        state.reset_to = Some(state.reset_to.map_or(offset, |lower| lower.min(offset)));
    }

    /// Takes the lowest offset to which the position was reset since the outputs were last taken.
    pub(crate) fn take_reset(&self) -> Option<i64> {
        self.state().reset_to.take()
    }

    /// Drops all outputs and accepts no more, since the partition is given up.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.outputs.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::Record;

    use super::*;

    fn record_outputs(usages: &[Arc<Usage>; 2]) -> RecordOutputs {
        let record = Record::builder("payments", 0, 7).build();
        let message = Output::to("invoices").payload("12345");
        RecordOutputs::new(record.coordinates().clone(), vec![message], usages.clone())
    }

    #[test]
    fn outputs_count_in_the_budget_until_dropped() {
        let usages = [Arc::default(), Arc::default()];
        let one = record_outputs(&usages);
        let usage = || usages.each_ref().map(|usage| usage.total());
        assert!(usage().iter().all(|used| used.records == 1 && used.bytes >= 5), "{:?}", usage());
        drop(one);
        assert_eq!(usage(), [Amount::default(); 2]);
    }

    #[test]
    fn outputs_after_close_are_dropped() {
        let usages = [Arc::default(), Arc::default()];
        let pending_outputs = PendingOutputs::default();
        pending_outputs.put([record_outputs(&usages)], || {});
        assert_eq!(pending_outputs.take(|| Some(8)).unwrap().1.len(), 1);
        pending_outputs.put([record_outputs(&usages)], || {});
        pending_outputs.close();
        pending_outputs.put([record_outputs(&usages)], || {
            panic!("moved the watermark after the outputs were closed")
        });
        assert_eq!(pending_outputs.take(|| Some(8)).unwrap().1.len(), 0);
        assert_eq!(usages[0].total(), Amount::default());
    }
}
