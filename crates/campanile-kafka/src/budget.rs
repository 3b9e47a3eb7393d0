//! How much may be kept in memory, and how much is.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::Record;

/// Records and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    /// What one record takes.
    pub(crate) fn of(record: &Record) -> Self {
        Self { records: 1, bytes: record.size() as u64 }
    }

    /// How full a budget this is: 1 is full.
    pub(crate) fn level(self, budget: Self) -> f64 {
        let part = |held: u64, of: u64| held as f64 / of as f64;
        part(self.records, budget.records).max(part(self.bytes, budget.bytes))
    }

    /// A part of it, and at least one of each.
    pub(crate) fn part(self, part: f64) -> Self {
        let of = |whole: u64| ((whole as f64 * part) as u64).max(1);
        Self { records: of(self.records), bytes: of(self.bytes) }
    }

    /// The smaller of both, records and bytes each.
    pub(crate) fn at_most(self, other: Self) -> Self {
        Self { records: self.records.min(other.records), bytes: self.bytes.min(other.bytes) }
    }

    /// What is left of a budget; `None` if one of the two is used up.
    pub(crate) fn left_of(self, budget: Self) -> Option<Self> {
        let records = budget.records.checked_sub(self.records)?;
        let bytes = budget.bytes.checked_sub(self.bytes)?;
        (records > 0 && bytes > 0).then_some(Self { records, bytes })
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

/// What came in and what was finished. Each side of these two is written by one thread alone, so that
/// neither needs more than a load and a store.
#[derive(Default)]
pub(crate) struct Stock {
    received: Tally,
    finished: Tally,
    /// What finished records have given out, and is not committed. By both.
    outgoing: Tally,
}

impl Stock {
    /// By the consumer's thread.
    pub(crate) fn receive(&self, amount: Amount) {
        self.received.add(amount);
    }

    /// By the dispatcher.
    pub(crate) fn finish(&self, amount: Amount) {
        self.finished.add(amount);
    }

    /// What a finished record gives out waits to be committed.
    pub(crate) fn put_out(&self, amount: Amount) {
        self.outgoing.records.fetch_add(amount.records, Ordering::AcqRel);
        self.outgoing.bytes.fetch_add(amount.bytes, Ordering::AcqRel);
    }

    /// That waits no more.
    pub(crate) fn sent(&self, amount: Amount) {
        self.outgoing.records.fetch_sub(amount.records, Ordering::AcqRel);
        self.outgoing.bytes.fetch_sub(amount.bytes, Ordering::AcqRel);
    }

    /// What finished records have given out, and is not committed.
    pub(crate) fn outgoing(&self) -> Amount {
        self.outgoing.get()
    }

    /// What is kept.
    pub(crate) fn held(&self) -> Amount {
        // The finished first: what is finished meanwhile was received before.
        let finished = self.finished.get();
        let received = self.received.get();
        let outgoing = self.outgoing();
        Amount {
            records: received.records.saturating_sub(finished.records) + outgoing.records,
            bytes: received.bytes.saturating_sub(finished.bytes) + outgoing.bytes,
        }
    }
}

#[derive(Default)]
struct Tally {
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    fn add(&self, amount: Amount) {
        let mut now = self.get();
        now += amount;
        self.records.store(now.records, Ordering::Release);
        self.bytes.store(now.bytes, Ordering::Release);
    }

    fn get(&self) -> Amount {
        Amount {
            records: self.records.load(Ordering::Acquire),
            bytes: self.bytes.load(Ordering::Acquire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Amount = Amount { records: 10, bytes: 1000 };

    #[test]
    fn the_scarcer_of_records_and_bytes_decides_how_full_it_is() {
        assert_eq!(Amount { records: 5, bytes: 0 }.level(BUDGET), 0.5);
        assert_eq!(Amount { records: 1, bytes: 2000 }.level(BUDGET), 2.0);
    }

    #[test]
    fn nothing_is_left_when_one_of_the_two_is_used_up() {
        let left = |records, bytes| Amount { records, bytes }.left_of(BUDGET);
        assert_eq!(left(9, 999), Some(Amount { records: 1, bytes: 1 }));
        assert_eq!(left(10, 0), None);
        assert_eq!(left(0, 1000), None);
        assert_eq!(left(11, 1001), None);
    }

    #[test]
    fn the_stock_is_what_was_received_and_not_finished() {
        let stock = Stock::default();
        stock.receive(Amount { records: 3, bytes: 30 });
        stock.finish(Amount { records: 1, bytes: 10 });
        assert_eq!(stock.held(), Amount { records: 2, bytes: 20 });
    }
}
