//! The watermark: up to which offset a partition is finished.

#[cfg(test)]
mod properties;

use std::collections::VecDeque;

#[cfg(test)]
use super::simulation::{Bug, is_planted};

/// Names one delivery. An offset that is delivered again gets another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Delivery(u64);

impl Delivery {
    /// Returns how many deliveries this one comes after `other`; 0 for one before it.
    pub(crate) fn after(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

/// The watermark of one partition in one assignment: the offset below which everything that was
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
    state: DeliveryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryState {
    Unfinished,
    Finished,
    /// The position was reset to before it: it is delivered again.
    Superseded,
}

impl Watermark {
    /// Takes in the offset of a record that was delivered.
    ///
    /// An offset at or below the last one means that the position was reset. What was delivered from there
    /// on comes again, and says nothing about the watermark any more; what is unfinished below still
    /// holds it.
    pub(crate) fn deliver(&mut self, offset: i64) -> Delivery {
        if self.last_offset.is_some_and(|last| offset <= last) {
            let again = self.delivered.iter_mut().rev();
            for delivered in again.take_while(|delivered| delivered.offset >= offset) {
                delivered.state = DeliveryState::Superseded;
            }
            self.mark = self.mark.filter(|mark| *mark <= offset);
            self.pass();
        }
        self.last_offset = Some(offset);
        self.delivered.push_back(Delivered { offset, state: DeliveryState::Unfinished });
        Delivery(self.first + self.delivered.len() as u64 - 1)
    }

    /// Returns whether this delivery was reset: its record comes again.
    pub(crate) fn is_superseded(&self, Delivery(number): Delivery) -> bool {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let delivered = index.and_then(|index| self.delivered.get(index));
        delivered.is_none_or(|delivered| delivered.state == DeliveryState::Superseded)
    }

    /// Returns the offset below which everything is finished.
    pub(crate) fn watermark(&self) -> Option<i64> {
        self.mark
    }

    /// Returns the oldest delivery that is not finished, or the next one.
    pub(crate) fn oldest(&self) -> Delivery {
        Delivery(self.first)
    }

    /// Returns how many deliveries this one comes after the oldest one that is not finished.
    pub(crate) fn ahead(&self, delivery: Delivery) -> u64 {
        delivery.after(self.oldest())
    }

    /// Finishes a delivery. Returns the watermark if that has moved it.
    pub(crate) fn finish(&mut self, Delivery(number): Delivery) -> Option<i64> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let delivered = self.delivered.get_mut(index)?;
        if delivered.state == DeliveryState::Unfinished {
            delivered.state = DeliveryState::Finished;
        }
        #[cfg(test)]
        if is_planted(Bug::WatermarkPassesUnfinished) {
            self.delivered[0].state = DeliveryState::Finished;
        }
        let before = self.mark;
        self.pass();
        self.mark.filter(|_| self.mark != before)
    }

    /// Moves past what is not unfinished.
    fn pass(&mut self) {
        while let Some(&Delivered { offset, state }) = self.delivered.front() {
            match state {
                DeliveryState::Unfinished => return,
                DeliveryState::Finished => self.mark = Some(offset + 1),
                DeliveryState::Superseded => {}
            }
            self.delivered.pop_front();
            self.first += 1;
        }
    }
}
