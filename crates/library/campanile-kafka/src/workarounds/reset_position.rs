//! Seeks partitions with a position that was reset to an earlier offset.
//!
//! When a paused partition is resumed, librdkafka continues after the highest offset that it has delivered in
//! batches, even after a reset: the records of the new log up to that offset would be skipped. Only a seek
//! makes it forget that offset.

use std::sync::Arc;

use campanile_driver::source::Assignment;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};

use crate::seek::{Position, position_list, seek};

/// The partitions to seek.
#[derive(Default)]
pub(crate) struct ResetPositions(Vec<Arc<Assignment>>);

impl ResetPositions {
    /// Adds partitions with a position that was reset.
    pub(crate) fn append(&mut self, partitions: &mut Vec<Arc<Assignment>>) {
        self.0.append(partitions);
    }

    /// Seeks to the next offset of each partition. Those for which the seek fails are sought again.
    pub(crate) fn seek<C: ConsumerContext>(&mut self, consumer: &BaseConsumer<C>) {
        self.0.retain(|assignment| !assignment.is_revoked());
        if self.0.is_empty() {
            return;
        }
        let next = |assignment: &Arc<Assignment>| {
            Some((assignment.clone(), assignment.offset_range.next()?))
        };
        let positions: Vec<Position> = self.0.iter().filter_map(next).collect();
        let is_sought = seek(consumer, position_list(&positions));
        self.0.retain(|assignment| !is_sought(assignment));
    }
}
