//! What is committed together.

use std::sync::Arc;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::{Offset, TopicPartitionList};

use super::Pending;
use crate::driver::Assignment;

/// The outputs of one transaction, and the offsets that go with them.
pub(super) struct Batch {
    parts: Vec<Part>,
}

/// Of one partition.
struct Part {
    assignment: Arc<Assignment>,
    watermark: i64,
    pending: Vec<Pending>,
}

/// A batch, and the group's generation that it is committed in.
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) group: ConsumerGroupMetadata,
}

impl Batch {
    /// Whether anything of these is finished and not committed.
    pub(super) fn is_due(partitions: &[Arc<Assignment>]) -> bool {
        partitions.iter().any(|assignment| assignment.uncommitted().is_some())
    }

    /// What of these is finished and not committed.
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

    /// Without what was given away meanwhile: that is its next owner's to send.
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
            .expect("a watermark is an offset of Kafka's or one more, and none is negative");
        }
        list
    }

    /// The outputs of each record, in the order of its partition.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.parts.iter().flat_map(|part| &part.pending)
    }

    /// The brokers have committed it.
    pub(super) fn committed(self) {
        for part in self.parts {
            part.assignment.set_committed(part.watermark);
        }
    }
}
