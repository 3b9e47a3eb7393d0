//! The offsets up to which all records of a partition are finished.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};

use super::revoked;

/// The offsets of each assigned partition.
#[derive(Default)]
pub(super) struct Offsets(Mutex<HashMap<i32, Progress>>);

/// The unfinished offsets of a partition, and the last one that was received.
#[derive(Default)]
struct Progress {
    unfinished: BTreeSet<i64>,
    last: i64,
}

impl ClientContext for Offsets {}

impl ConsumerContext for Offsets {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        revoked(rebalance).into_iter().for_each(|partition| self.forget(partition));
    }
}

impl Offsets {
    /// Call this in the order of the records.
    pub(super) fn begin(&self, partition: i32, offset: i64) {
        let mut partitions = self.lock();
        let progress = partitions.entry(partition).or_default();
        progress.unfinished.insert(offset);
        progress.last = offset;
    }

    /// Returns the last offset of the finished records, if this record was the first unfinished one.
    /// The record may be of an assignment that was revoked.
    pub(super) fn finish(&self, partition: i32, offset: i64) -> Option<i64> {
        let mut partitions = self.lock();
        let Progress { unfinished, last } = partitions.get_mut(&partition)?;
        let was_first = unfinished.first() == Some(&offset);
        unfinished.remove(&offset);
        was_first.then(|| unfinished.first().map_or(*last, |first| first - 1))
    }

    /// Forgets a revoked partition. If it comes back, it starts again at its committed offset.
    fn forget(&self, partition: i32) {
        self.lock().remove(&partition);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_stored_up_to_first_unfinished_record() {
        let offsets = Offsets::default();
        [3, 4, 7].iter().for_each(|offset| offsets.begin(0, *offset));
        assert_eq!(offsets.finish(0, 4), None);
        assert_eq!(offsets.finish(0, 3), Some(6));
        assert_eq!(offsets.finish(0, 7), Some(7));
    }

    #[test]
    fn revoked_partition_starts_again_without_its_records() {
        let offsets = Offsets::default();
        [3, 4].iter().for_each(|offset| offsets.begin(0, *offset));
        offsets.forget(0);
        assert_eq!(offsets.finish(0, 3), None);
        offsets.begin(0, 9);
        // Of the assignment that was revoked.
        assert_eq!(offsets.finish(0, 4), None);
        assert_eq!(offsets.finish(0, 9), Some(9));
    }
}
