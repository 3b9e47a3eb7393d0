//! The distribution of partitions over librdkafka's queues.
//!
//! librdkafka limits its prefetch per queue. If all partitions shared one queue, a few of them would
//! fill the budget while the others had no records to process. If each partition had its own queue,
//! memory would grow with the number of partitions. The number of queues is therefore fixed, and the
//! queue with the fewest records in the driver's memory is read first.

use std::sync::Arc;

use campanile_driver::source::{Assignment, AssignmentId};

use crate::native::fetch_queues::QUEUES;

/// The partitions of each queue.
#[derive(Default)]
pub(super) struct PartitionQueues([Vec<Arc<Assignment>>; QUEUES]);

impl PartitionQueues {
    /// Adds a partition to the queue with the fewest partitions.
    pub(super) fn add(&mut self, assignment: Arc<Assignment>) {
        let queue = self.0.iter_mut().min_by_key(|queue| queue.len()).expect("there is a queue");
        queue.push(assignment);
    }

    /// Returns the index of the queue of a partition.
    pub(super) fn index(&self, id: AssignmentId) -> Option<usize> {
        self.0.iter().position(|queue| queue.iter().any(|assignment| assignment.id == id))
    }

    /// Replaces the assignment of a partition, which stays in its queue.
    pub(super) fn replace(&mut self, id: AssignmentId, new: &Arc<Assignment>) {
        let all = self.0.iter_mut().flatten();
        all.filter(|assignment| assignment.id == id).for_each(|old| *old = new.clone());
    }

    /// Removes a partition.
    pub(super) fn remove(&mut self, id: AssignmentId) {
        self.0.iter_mut().for_each(|queue| queue.retain(|assignment| assignment.id != id));
    }

    /// Sets `order` to the indices of the queues that have partitions, in the order in which they are to
    /// be read.
    pub(super) fn read_order(&self, order: &mut Vec<usize>) {
        let records = |assignment: &Arc<Assignment>| assignment.usage.total().records;
        let (mut held, mut count) = (0, 0);
        for assignment in self.0.iter().flatten() {
            held += records(assignment);
            count += 1;
        }
        // Limit what a single partition counts, so that a stalled partition does not hold up the others
        // in its queue.
        let limit = held / u64::max(count, 1) + 1;
        let held = |index: &usize| {
            self.0[*index].iter().map(|assignment| records(assignment).min(limit)).sum::<u64>()
        };
        order.clear();
        order.extend((0..QUEUES).filter(|index| !self.0[*index].is_empty()));
        order.sort_by_cached_key(held);
    }
}

#[cfg(test)]
mod tests {
    use campanile_driver::source::Amount;

    use super::*;

    fn assignment(number: i32) -> Arc<Assignment> {
        crate::source::tests::assignment("t", number)
    }

    fn order(queues: &PartitionQueues) -> Vec<usize> {
        let mut order = Vec::new();
        queues.read_order(&mut order);
        order
    }

    #[test]
    fn partitions_have_own_queues_while_there_are_enough() {
        let mut queues = PartitionQueues::default();
        let partitions: Vec<_> = (0..QUEUES as i32).map(assignment).collect();
        partitions.iter().for_each(|partition| queues.add(partition.clone()));
        let mut indices: Vec<_> = partitions.iter().filter_map(|p| queues.index(p.id)).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..QUEUES).collect::<Vec<_>>());
        queues.remove(partitions[7].id);
        let added = [100, 101].map(assignment);
        added.iter().for_each(|partition| queues.add(partition.clone()));
        assert_ne!(queues.index(added[0].id), queues.index(added[1].id));
    }

    #[test]
    fn queue_with_least_in_memory_is_read_first() {
        let mut queues = PartitionQueues::default();
        assert_eq!(order(&queues), [0; 0]);
        let partitions: Vec<_> = (0..3).map(assignment).collect();
        partitions.iter().for_each(|partition| queues.add(partition.clone()));
        let indices: Vec<_> = partitions.iter().filter_map(|p| queues.index(p.id)).collect();
        for (partition, records) in partitions.iter().zip([5, 1, 3]) {
            partition.usage.add_held(Amount { records, bytes: 0 });
        }
        assert_eq!(order(&queues), [indices[1], indices[2], indices[0]]);
    }

    #[test]
    fn stalled_partition_does_not_block_others_in_its_queue() {
        let mut queues = PartitionQueues::default();
        let partitions: Vec<_> = (0..4 * QUEUES as i32).map(assignment).collect();
        partitions.iter().for_each(|partition| queues.add(partition.clone()));
        let indices: Vec<_> = partitions.iter().filter_map(|p| queues.index(p.id)).collect();
        for (partition, index) in partitions.iter().zip(&indices) {
            let records = if *index == 3 { 0 } else { 100 };
            partition.usage.add_held(Amount { records, bytes: 0 });
        }
        partitions[3].usage.add_held(Amount { records: 10_000, bytes: 0 });
        assert_eq!(order(&queues)[0], 3);
    }
}
