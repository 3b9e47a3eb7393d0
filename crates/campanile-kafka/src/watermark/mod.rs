//! Up to where a partition is finished.

#[cfg(test)]
mod properties;

use std::collections::VecDeque;

/// Names one delivery. An offset that is delivered again has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Delivery(u64);

/// The mark of one partition in one assignment: the offset below which everything that was
/// *delivered* is finished.
///
/// Compaction and transaction markers leave gaps in the offsets, so "the next offset" is the next
/// that was delivered, and not one more.
#[derive(Debug, Default)]
pub(crate) struct Watermark {
    /// From the oldest unfinished delivery on.
    delivered: VecDeque<Delivered>,
    /// The number of `delivered`'s first.
    first: u64,
    last_offset: Option<i64>,
    mark: Option<i64>,
}

#[derive(Debug)]
struct Delivered {
    offset: i64,
    finished: bool,
}

impl Watermark {
    /// A record was delivered.
    ///
    /// An offset at or below the last one means that the position was reset: what is not finished of
    /// the time before says nothing about the mark any more, and the mark starts at the new position.
    pub(crate) fn deliver(&mut self, offset: i64) -> Delivery {
        if self.last_offset.is_some_and(|last| offset <= last) {
            self.first += self.delivered.len() as u64;
            self.delivered.clear();
            self.mark = None;
        }
        self.last_offset = Some(offset);
        self.delivered.push_back(Delivered { offset, finished: false });
        Delivery(self.first + self.delivered.len() as u64 - 1)
    }

    /// The offset below which everything is finished.
    pub(crate) fn mark(&self) -> Option<i64> {
        self.mark
    }

    /// The oldest delivery that is not finished, or the next one.
    pub(crate) fn oldest(&self) -> Delivery {
        Delivery(self.first)
    }

    /// How many deliveries this one comes after the oldest one that is not finished.
    pub(crate) fn ahead(&self, Delivery(number): Delivery) -> u64 {
        number.saturating_sub(self.first)
    }

    /// A delivery is finished. Gives the mark if that has moved it.
    pub(crate) fn finish(&mut self, Delivery(number): Delivery) -> Option<i64> {
        let index = number.checked_sub(self.first)?;
        self.delivered.get_mut(usize::try_from(index).ok()?)?.finished = true;
        let before = self.mark;
        while let Some(Delivered { offset, finished: true }) = self.delivered.front() {
            self.mark = Some(offset + 1);
            self.delivered.pop_front();
            self.first += 1;
        }
        self.mark.filter(|_| self.mark != before)
    }
}
