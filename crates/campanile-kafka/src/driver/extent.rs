//! How far a partition was read, and how far it goes.

use std::sync::atomic::{AtomicI64, Ordering};

/// No offset.
const NONE: i64 = -1;

/// Of one assignment. Written by the consumer's thread alone.
pub(crate) struct Extent {
    /// The first offset that was read.
    first: AtomicI64,
    /// The last one.
    last: AtomicI64,
    /// The offset behind the partition's last record, as it was heard last.
    end: AtomicI64,
}

impl Extent {
    pub(crate) fn new() -> Self {
        Self { first: AtomicI64::new(NONE), last: AtomicI64::new(NONE), end: AtomicI64::new(NONE) }
    }

    /// A record was read.
    pub(crate) fn read(&self, offset: i64) {
        // One that comes again means that the position was reset.
        if offset <= self.last.load(Ordering::Relaxed) || self.first() == NONE {
            self.first.store(offset, Ordering::Relaxed);
        }
        self.last.store(offset, Ordering::Relaxed);
    }

    /// The brokers have told how far it goes.
    pub(crate) fn reaches(&self, end: i64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// The offsets from this mark to the end; without a mark, from the first that was read. `None` if
    /// neither is known.
    pub(crate) fn lag(&self, mark: Option<i64>) -> Option<u64> {
        let start = mark.or_else(|| Some(self.first()).filter(|first| *first != NONE))?;
        // What was read is there, whatever was heard.
        let end = self.end.load(Ordering::Relaxed).max(self.last.load(Ordering::Relaxed) + 1);
        Some(u64::try_from(end - start).unwrap_or_default())
    }

    fn first(&self) -> i64 {
        self.first.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_from_the_mark_to_the_end_and_unknown_before_the_first_record() {
        let extent = Extent::new();
        assert_eq!(extent.lag(None), None);
        extent.reaches(100);
        assert_eq!(extent.lag(None), None, "nobody has said where it starts");
        extent.read(40);
        assert_eq!((extent.lag(None), extent.lag(Some(41))), (Some(60), Some(59)));
        extent.read(70);
        assert_eq!(extent.lag(None), Some(60));
        assert_eq!(extent.lag(Some(100)), Some(0));
    }

    #[test]
    fn what_was_read_counts_also_where_the_end_that_was_heard_is_older() {
        let extent = Extent::new();
        extent.read(7);
        assert_eq!(extent.lag(None), Some(1));
        extent.reaches(5);
        assert_eq!((extent.lag(None), extent.lag(Some(8))), (Some(1), Some(0)));
    }

    #[test]
    fn after_a_reset_it_starts_where_reading_does() {
        let extent = Extent::new();
        extent.reaches(100);
        extent.read(90);
        extent.read(10);
        assert_eq!(extent.lag(None), Some(90));
    }
}
