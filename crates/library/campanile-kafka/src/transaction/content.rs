//! The content of one transaction.

use std::sync::Arc;

use campanile_driver::source::Assignment;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::{Offset, TopicPartitionList};

use super::{PendingOutputs, RecordOutputs};
use crate::offset_identity::add_offset;

/// The outputs and offsets of one transaction.
pub(super) struct TransactionContent {
    parts: Vec<PartitionContent>,
}

/// One partition's part of a transaction.
struct PartitionContent {
    assignment: Arc<Assignment>,
    watermark: i64,
    leader_epoch: Option<i32>,
    outputs: Vec<RecordOutputs>,
}

/// The content of a transaction, and the generation of the group to commit it in.
pub(super) struct CommitRequest {
    pub(super) content: TransactionContent,
    pub(super) group: ConsumerGroupMetadata,
}

impl TransactionContent {
    /// Checks whether any of these partitions has finished records that are not committed.
    pub(super) fn has_uncommitted(partitions: &[Arc<Assignment>]) -> bool {
        partitions.iter().any(|assignment| assignment.uncommitted().is_some())
    }

    /// Takes the outputs of the finished records that are not committed, with the watermark of each
    /// partition.
    pub(super) fn take_from(partitions: &[Arc<Assignment>]) -> Self {
        let part = |assignment: &Arc<Assignment>| {
            let (watermark, outputs) =
                PendingOutputs::of(assignment).take(|| assignment.uncommitted())?;
            let (assignment, leader_epoch) = (assignment.clone(), assignment.leader_epoch());
            Some(PartitionContent { assignment, watermark, leader_epoch, outputs })
        };
        Self { parts: partitions.iter().filter_map(part).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Drops the partitions that were revoked since the content was taken (their next owner sends the
    /// outputs), and the records from a reset position on, which are delivered again.
    pub(super) fn retain_current(mut self) -> Self {
        self.parts.retain(|part| !part.assignment.is_closed());
        for part in &mut self.parts {
            if let Some(offset) = PendingOutputs::of(&part.assignment).take_reset() {
                part.outputs.retain(|outputs| outputs.at.offset < offset);
                part.watermark = part.watermark.min(offset);
            }
        }
        self
    }

    /// Drops the partitions that have another log by now.
    pub(super) fn retain_same_log(&mut self) {
        self.parts.retain(|part| !part.assignment.is_log_lost());
    }

    pub(super) fn offsets(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for PartitionContent { assignment, watermark, leader_epoch, .. } in &self.parts {
            add_offset(&mut list, assignment, *watermark, *leader_epoch);
        }
        list
    }

    pub(super) fn partitions(&self) -> Vec<Arc<Assignment>> {
        self.parts.iter().map(|part| part.assignment.clone()).collect()
    }

    /// Checks whether the content was committed, given the group's committed offset of each of its
    /// partitions. Of one transaction's offsets, either all are committed or none.
    ///
    /// An offset above the content's is that of the partition's next owner. If the partition still
    /// belongs to this consumer, the offset is older than the content: the position was reset since.
    pub(super) fn is_committed(&self, committed: &TopicPartitionList) -> bool {
        self.parts.iter().all(|part| {
            let PartitionContent { assignment, watermark, .. } = part;
            let committed = committed.find_partition(&assignment.topic, assignment.partition);
            match committed.map(|element| element.offset()) {
                Some(Offset::Offset(offset)) if assignment.is_closed() => offset >= *watermark,
                Some(Offset::Offset(offset)) => offset == *watermark,
                _ => false,
            }
        })
    }

    /// Iterates over the outputs of each record, in the order of its partition.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &RecordOutputs> {
        self.parts.iter().flat_map(|part| &part.outputs)
    }

    /// Marks the content as committed by the brokers.
    pub(super) fn mark_committed(self) {
        for part in self.parts {
            // After a reset, the watermark may reach this offset again, with other outputs.
            if PendingOutputs::of(&part.assignment).take_reset().is_none() {
                part.assignment.set_committed(part.watermark);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_driver::SourceContext;

    use super::*;

    #[test]
    fn higher_offset_commits_the_content_only_of_a_partition_with_another_owner() {
        let assignment = SourceContext::default().assignment("t", 0);
        let assignment = Arc::new(PendingOutputs::add_to(assignment));
        assignment.advance(10);
        let content = TransactionContent::take_from(std::slice::from_ref(&assignment));
        let is_committed = |offset| {
            let mut committed = TopicPartitionList::new();
            committed.add_partition_offset("t", 0, Offset::Offset(offset)).unwrap();
            content.is_committed(&committed)
        };
        assert_eq!([9, 10, 11].map(is_committed), [false, true, false]);
        assignment.close();
        assert_eq!([9, 10, 11].map(is_committed), [false, true, true]);
    }
}
