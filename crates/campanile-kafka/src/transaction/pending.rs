//! Outputs held in memory until their transaction is committed.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::{Coordinates, Output};

use crate::driver::{Amount, Usage};

/// The outputs of one processed record. They count in the budget until this is dropped.
pub(crate) struct Pending {
    pub(crate) at: Coordinates,
    pub(crate) messages: Vec<Output>,
    amount: Amount,
    /// The usage of the partition, and of all partitions.
    usages: [Arc<Usage>; 2],
}

impl Pending {
    pub(crate) fn new(at: Coordinates, messages: Vec<Output>, usages: [Arc<Usage>; 2]) -> Self {
        let bytes = messages.iter().map(Output::size).sum::<usize>() as u64;
        let amount = Amount { records: 1, bytes };
        usages.iter().for_each(|usage| usage.add_outputs(amount));
        Self { at, messages, amount, usages }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.usages.iter().for_each(|usage| usage.remove_outputs(self.amount));
    }
}

/// The outputs of one assignment of a partition: those of the records below its watermark, as long as
/// no transaction contains them.
#[derive(Default)]
pub(crate) struct Outbox(Mutex<State>);

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    closed: bool,
}

impl Outbox {
    /// Adds these outputs and moves the watermark in one step, so that [`take`](Self::take) sees
    /// either both or neither.
    pub(crate) fn put(&self, pending: impl IntoIterator<Item = Pending>, set_mark: impl FnOnce()) {
        let mut state = self.state();
        // After a revoke, the partition's next owner produces these outputs.
        if !state.closed {
            state.pending.extend(pending);
            set_mark();
        }
    }

    /// Takes all outputs, with the watermark that they belong to. Takes nothing if there is no
    /// watermark.
    pub(crate) fn take<M>(&self, mark: impl FnOnce() -> Option<M>) -> Option<(M, Vec<Pending>)> {
        let mut state = self.state();
        let mark = mark()?;
        Some((mark, mem::take(&mut state.pending)))
    }

    /// Drops all outputs and accepts no more, since the partition is given up.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.pending.clear();
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

    fn pending(usages: &[Arc<Usage>; 2]) -> Pending {
        let record = Record::builder("payments", 0, 7).build();
        let message = Output::to("invoices").payload("12345");
        Pending::new(record.coordinates().clone(), vec![message], usages.clone())
    }

    #[test]
    fn outputs_count_in_the_budget_until_they_are_dropped() {
        let usages = [Arc::default(), Arc::default()];
        let one = pending(&usages);
        let held = || usages.each_ref().map(|usage| usage.total());
        assert!(held().iter().all(|held| held.records == 1 && held.bytes >= 5), "{:?}", held());
        drop(one);
        assert_eq!(held(), [Amount::default(); 2]);
    }

    #[test]
    fn what_comes_for_a_partition_that_was_given_away_is_dropped() {
        let usages = [Arc::default(), Arc::default()];
        let outbox = Outbox::default();
        outbox.put([pending(&usages)], || {});
        assert_eq!(outbox.take(|| Some(8)).unwrap().1.len(), 1);
        outbox.put([pending(&usages)], || {});
        outbox.close();
        outbox.put([pending(&usages)], || panic!("moved the watermark of a closed outbox"));
        assert_eq!(outbox.take(|| Some(8)).unwrap().1.len(), 0);
        assert_eq!(usages[0].total(), Amount::default());
    }
}
