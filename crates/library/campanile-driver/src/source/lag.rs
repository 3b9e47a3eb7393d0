//! The range of offsets that was read from a partition, and the partition's end.

use crate::source::offset::AtomicOffset;

/// The range of one assignment. Only the consumer's thread writes it.
#[derive(Debug)]
pub struct OffsetRange {
    /// The offset that was sought before anything was read.
    start: AtomicOffset,
    /// The first offset that was read since the last reset of the position.
    first: AtomicOffset,
    /// The last offset that was read.
    last: AtomicOffset,
    /// The end of a log that was read to its end. It may be beyond the position: markers of transactions
    /// are no records.
    complete_to: AtomicOffset,
    /// The offset after the partition's last record, as the brokers reported it last.
    end: AtomicOffset,
}

impl OffsetRange {
    pub(crate) fn new() -> Self {
        let none = AtomicOffset::none;
        Self { start: none(), first: none(), last: none(), complete_to: none(), end: none() }
    }

    /// Sets the offset from which the partition is read.
    pub fn set_start(&self, offset: i64) {
        self.start.store(Some(offset));
    }

    /// Returns the offset from which the partition is read next. `None` if it was never started.
    pub fn position(&self) -> Option<i64> {
        self.next().or_else(|| self.start.load())
    }

    /// Takes in the offset of a record that was read. Returns the position if the offset is another one:
    /// a smaller offset means that the position was reset, and a larger one that offsets are missing.
    pub fn record_read(&self, offset: i64) -> Option<i64> {
        let position = self.position().filter(|position| *position != offset);
        let was_reset = position.is_some_and(|position| offset < position);
        if self.last.load().is_none() || was_reset {
            self.first.store(Some(offset));
        }
        if was_reset {
            self.complete_to.store(None);
        }
        self.last.store(Some(offset));
        position
    }

    /// Returns the offset after the last one that was read.
    pub fn next(&self) -> Option<i64> {
        self.last.load().map(|last| last + 1)
    }

    /// Returns the end of the log, if the log was read to its end.
    pub fn complete_to(&self) -> Option<i64> {
        self.complete_to.load()
    }

    /// Notes that there are no records from the position up to this offset.
    pub fn set_complete_to(&self, offset: i64) {
        self.complete_to.store(Some(offset));
    }

    /// Sets the partition's end.
    pub fn set_end(&self, end: i64) {
        self.end.store(Some(end));
    }

    /// Counts the offsets from the watermark to the partition's end, or without a watermark from
    /// the first offset that was read. `None` if neither is known, or if nothing was read and the
    /// end is unknown.
    pub(crate) fn lag(&self, watermark: Option<i64>) -> Option<u64> {
        let start = watermark.or_else(|| self.first.load())?;
        // The brokers' report may be older than the last read.
        let end = self.end.load().max(self.next())?;
        Some(u64::try_from(end - start).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_unknown_before_the_first_read() {
        let offset_range = OffsetRange::new();
        assert_eq!(offset_range.lag(None), None);
        offset_range.set_end(100);
        assert_eq!(offset_range.lag(None), None, "the start is not known");
        offset_range.record_read(40);
        assert_eq!((offset_range.lag(None), offset_range.lag(Some(41))), (Some(60), Some(59)));
        offset_range.record_read(70);
        assert_eq!(offset_range.lag(None), Some(60));
        assert_eq!(offset_range.lag(Some(100)), Some(0));
    }

    #[test]
    fn lag_counts_reads_beyond_an_outdated_end() {
        let offset_range = OffsetRange::new();
        offset_range.record_read(7);
        assert_eq!(offset_range.lag(None), Some(1));
        offset_range.set_end(5);
        assert_eq!((offset_range.lag(None), offset_range.lag(Some(8))), (Some(1), Some(0)));
    }

    #[test]
    fn lag_after_a_reset_counts_from_the_new_position() {
        let offset_range = OffsetRange::new();
        offset_range.set_end(100);
        offset_range.record_read(90);
        offset_range.record_read(10);
        assert_eq!(offset_range.lag(None), Some(90));
    }
}
