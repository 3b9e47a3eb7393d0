//! The content of one transaction.

use std::sync::Arc;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::{Offset, TopicPartitionList};

use super::Pending;
use crate::driver::Assignment;

/// The outputs and offsets of one transaction.
pub(super) struct Batch {
    parts: Vec<Part>,
}

/// One partition's part of a batch.
struct Part {
    assignment: Arc<Assignment>,
    watermark: i64,
    pending: Vec<Pending>,
}

/// A batch, and the generation of the group to commit it in.
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) group: ConsumerGroupMetadata,
}

impl Batch {
    /// Checks whether any of these partitions has finished records that are not committed.
    pub(super) fn is_due(partitions: &[Arc<Assignment>]) -> bool {
        partitions.iter().any(|assignment| assignment.uncommitted().is_some())
    }

    /// Takes the outputs of the finished records that are not committed, with the watermark of each
    /// partition.
    pub(super) fn of(partitions: &[Arc<Assignment>]) -> Self {
        let part = |assignment: &Arc<Assignment>| {
            let (watermark, pending) = assignment.outbox.take(|| assignment.uncommitted())?;
            Some(Part { assignment: assignment.clone(), watermark, pending })
        };
        Self { parts: partitions.iter().filter_map(part).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Drops the partitions that were revoked in the meantime: their next owner sends the outputs.
    pub(super) fn ours(mut self) -> Self {
        self.parts.retain(|part| !part.assignment.outbox.is_closed());
        self
    }

    pub(super) fn offsets(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for Part { assignment, watermark, .. } in &self.parts {
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
    pub(super) fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.parts.iter().flat_map(|part| &part.pending)
    }

    /// Marks the batch as committed by the brokers.
    pub(super) fn committed(self) {
        for part in self.parts {
            part.assignment.set_committed(part.watermark);
        }
    }
}
