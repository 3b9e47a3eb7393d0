//! The watermark: the offset up to which a partition is finished.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

/// Identifies a delivery. An offset that is delivered again is a new delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Delivery(u64);

impl Delivery {
    /// Counts how many deliveries this one comes after `other`: 0 if it comes before.
    pub(crate) fn distance_from(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

/// The watermark of one partition in one assignment: the offset below which everything that was
/// *delivered* is finished.
///
/// Compaction and transaction markers leave gaps in the offsets, so the "next offset" is the next
/// one that was delivered, not the previous offset plus one.
#[derive(Debug, Default)]
pub(crate) struct Watermark {
    /// The deliveries from the oldest unfinished one on.
    delivered: VecDeque<Delivered>,
    /// The number of the first delivery in `delivered`.
    first: u64,
    last_offset: Option<i64>,
    watermark: Option<i64>,
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
    /// The position was reset to this offset or below, so the offset is delivered again.
    Superseded,
}

impl Watermark {
    /// Checks whether delivering this offset next means that the position was reset.
    pub(crate) fn is_reset(&self, offset: i64) -> bool {
        self.last_offset.is_some_and(|last| offset <= last)
    }

    /// Registers the delivery of an offset.
    ///
    /// After a reset, offsets from this one on are delivered again, so their earlier deliveries no
    /// longer affect the watermark. Unfinished deliveries below the offset still hold the watermark
    /// back.
    pub(crate) fn deliver(&mut self, offset: i64) -> Delivery {
        if self.is_reset(offset) {
            let again = self.delivered.iter_mut().rev();
            for delivered in again.take_while(|delivered| delivered.offset >= offset) {
                delivered.state = DeliveryState::Superseded;
            }
            self.watermark = self.watermark.filter(|watermark| *watermark <= offset);
            self.advance();
        }
        self.last_offset = Some(offset);
        self.delivered.push_back(Delivered { offset, state: DeliveryState::Unfinished });
        Delivery(self.first + self.delivered.len() as u64 - 1)
    }

    /// Checks whether a reset has superseded this delivery, so that its record is delivered again.
    pub(crate) fn is_superseded(&self, Delivery(number): Delivery) -> bool {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let delivered = index.and_then(|index| self.delivered.get(index));
        delivered.is_none_or(|delivered| delivered.state == DeliveryState::Superseded)
    }

    /// Everything below this offset is finished.
    pub(crate) fn watermark(&self) -> Option<i64> {
        self.watermark
    }

    /// Finds the oldest unfinished delivery, or the next delivery if all are finished.
    pub(crate) fn oldest(&self) -> Delivery {
        Delivery(self.first)
    }

    /// Counts how many deliveries this one comes after the oldest unfinished one.
    pub(crate) fn distance(&self, delivery: Delivery) -> u64 {
        delivery.distance_from(self.oldest())
    }

    /// Finishes a delivery. Returns the watermark if it has moved.
    pub(crate) fn finish(&mut self, Delivery(number): Delivery) -> Option<i64> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let delivered = self.delivered.get_mut(index)?;
        if delivered.state == DeliveryState::Unfinished {
            delivered.state = DeliveryState::Finished;
        }
        let before = self.watermark;
        self.advance();
        self.watermark.filter(|_| self.watermark != before)
    }

    /// Moves the watermark past finished and superseded deliveries.
    fn advance(&mut self) {
        while let Some(&Delivered { offset, state }) = self.delivered.front() {
            match state {
                DeliveryState::Unfinished => return,
                DeliveryState::Finished => self.watermark = Some(offset + 1),
                DeliveryState::Superseded => {}
            }
            self.delivered.pop_front();
            self.first += 1;
        }
    }
}
