//! The budget of records and bytes, and its usage.

use std::iter::Sum;
use std::ops::{AddAssign, SubAssign};
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::Record;

/// A number of records and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The number of records.
    pub records: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl Amount {
    /// Measures a record.
    pub fn of(record: &Record) -> Self {
        Self { records: 1, bytes: record.size() as u64 }
    }

    /// Computes the fraction of a budget that this amount takes; 1 is full.
    pub(crate) fn level(self, budget: Self) -> f64 {
        let part = |held: u64, of: u64| held as f64 / of as f64;
        part(self.records, budget.records).max(part(self.bytes, budget.bytes))
    }

    /// Computes this fraction of the amount: at least one record and one byte.
    pub(crate) fn fraction(self, fraction: f64) -> Self {
        let of = |whole: u64| ((whole as f64 * fraction) as u64).max(1);
        Self { records: of(self.records), bytes: of(self.bytes) }
    }

    /// Takes the minimum of both amounts, for records and bytes separately.
    pub(crate) fn at_most(self, other: Self) -> Self {
        Self { records: self.records.min(other.records), bytes: self.bytes.min(other.bytes) }
    }

    /// Subtracts the amount from a budget, unless records or bytes are used up.
    pub(crate) fn remaining_of(self, budget: Self) -> Option<Self> {
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

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |mut sum, amount| {
            sum += amount;
            sum
        })
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        self.records -= other.records;
        self.bytes -= other.bytes;
    }
}

/// The records in memory and what they have handed over, of one partition or of all partitions.
///
/// Records are counted by the driver only; what they hand over also by the thread that commits it. Any thread
/// may read the usage for the status.
#[derive(Debug, Default)]
pub struct Usage {
    records: Counter,
    held: Counter,
}

impl Usage {
    /// Counts received records.
    pub(crate) fn add(&self, amount: Amount) {
        self.records.add(amount);
    }

    /// Releases records that are finished or dropped.
    pub(crate) fn remove(&self, amount: Amount) {
        self.records.remove(amount);
    }

    /// Counts what finished records have handed over, until it is committed.
    pub fn add_held(&self, amount: Amount) {
        self.held.add(amount);
    }

    /// Releases what is committed or dropped.
    pub fn remove_held(&self, amount: Amount) {
        self.held.remove(amount);
    }

    /// Reads the amount of what finished records have handed over.
    pub(crate) fn held(&self) -> Amount {
        self.held.get()
    }

    /// Adds up both.
    pub fn total(&self) -> Amount {
        let mut total = self.records.get();
        total += self.held.get();
        total
    }
}

#[derive(Debug, Default)]
struct Counter {
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, amount: Amount) {
        self.records.fetch_add(amount.records, Ordering::Relaxed);
        self.bytes.fetch_add(amount.bytes, Ordering::Relaxed);
    }

    fn remove(&self, amount: Amount) {
        self.records.fetch_sub(amount.records, Ordering::Relaxed);
        self.bytes.fetch_sub(amount.bytes, Ordering::Relaxed);
    }

    fn get(&self) -> Amount {
        Amount {
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Amount = Amount { records: 10, bytes: 1000 };

    #[test]
    fn level_is_the_larger_of_records_and_bytes() {
        assert_eq!(Amount { records: 5, bytes: 0 }.level(BUDGET), 0.5);
        assert_eq!(Amount { records: 1, bytes: 2000 }.level(BUDGET), 2.0);
    }

    #[test]
    fn remaining_is_none_when_records_or_bytes_are_used_up() {
        let remaining = |records, bytes| Amount { records, bytes }.remaining_of(BUDGET);
        assert_eq!(remaining(9, 999), Some(Amount { records: 1, bytes: 1 }));
        assert_eq!(remaining(10, 0), None);
        assert_eq!(remaining(0, 1000), None);
        assert_eq!(remaining(11, 1001), None);
    }

    #[test]
    fn usage_counts_records_and_what_they_hand_over() {
        let usage = Usage::default();
        usage.add(Amount { records: 3, bytes: 30 });
        usage.remove(Amount { records: 1, bytes: 10 });
        usage.add_held(Amount { records: 1, bytes: 5 });
        assert_eq!(usage.total(), Amount { records: 3, bytes: 25 });
        assert_eq!(usage.held(), Amount { records: 1, bytes: 5 });
    }
}
