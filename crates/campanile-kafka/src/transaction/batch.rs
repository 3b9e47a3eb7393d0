//! The content of one transaction.

use std::sync::Arc;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::{Offset, TopicPartitionList};

use super::RecordOutputs;
use crate::driver::Assignment;

/// The outputs and offsets of one transaction.
pub(super) struct Batch {
    parts: Vec<PartitionBatch>,
}

/// One partition's part of a batch.
struct PartitionBatch {
    assignment: Arc<Assignment>,
    watermark: i64,
    outputs: Vec<RecordOutputs>,
}

/// A batch, and the generation of the group to commit it in.
pub(super) struct CommitRequest {
    pub(super) batch: Batch,
    pub(super) group: ConsumerGroupMetadata,
}

impl Batch {
    /// Checks whether any of these partitions has finished records that are not committed.
    pub(super) fn has_uncommitted(partitions: &[Arc<Assignment>]) -> bool {
        partitions.iter().any(|assignment| assignment.uncommitted().is_some())
    }

    /// Takes the outputs of the finished records that are not committed, with the watermark of each
    /// partition.
    pub(super) fn take_from(partitions: &[Arc<Assignment>]) -> Self {
        let part = |assignment: &Arc<Assignment>| {
            let (watermark, outputs) =
                assignment.pending_outputs.take(|| assignment.uncommitted())?;
            Some(PartitionBatch { assignment: assignment.clone(), watermark, outputs })
        };
        Self { parts: partitions.iter().filter_map(part).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Drops the partitions that were revoked since the batch was taken, whose next owner sends the
    /// outputs, and the records from a reset position on, which are delivered again.
    pub(super) fn retain_current(mut self) -> Self {
        self.parts.retain(|part| !part.assignment.pending_outputs.is_closed());
        for part in &mut self.parts {
            if let Some(offset) = part.assignment.pending_outputs.take_reset() {
                part.outputs.retain(|outputs| outputs.at.offset < offset);
                part.watermark = part.watermark.min(offset);
            }
        }
        self
    }

    pub(super) fn offsets(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for PartitionBatch { assignment, watermark, .. } in &self.parts {
            list.add_partition_offset(
                &assignment.topic,
                assignment.partition,
                Offset::Offset(*watermark),
            )
            .expect("a watermark is a record's offset or one above it, and never negative");
        }
        list
    }

    /// Iterates over the outputs of each record, in the order of its partition.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &RecordOutputs> {
        self.parts.iter().flat_map(|part| &part.outputs)
    }

    /// Marks the batch as committed by the brokers.
    pub(super) fn mark_committed(self) {
        for part in self.parts {
            // After a reset, the watermark may reach this offset again, with other outputs.
            if part.assignment.pending_outputs.take_reset().is_none() {
                part.assignment.set_committed(part.watermark);
            }
        }
    }
}
