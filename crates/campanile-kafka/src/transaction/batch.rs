//! What is committed together.

use std::sync::Arc;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::{Offset, TopicPartitionList};

use super::Pending;
use crate::slot::Slot;

/// The outputs of one transaction, and the offsets that go with them.
pub(super) struct Batch {
    parts: Vec<Part>,
}

/// Of one partition.
struct Part {
    slot: Arc<Slot>,
    mark: i64,
    pending: Vec<Pending>,
}

/// A batch, and the group's generation that it is committed in.
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) group: ConsumerGroupMetadata,
}

impl Batch {
    /// Whether anything of these is finished and not committed.
    pub(super) fn is_due(slots: &[Arc<Slot>]) -> bool {
        slots.iter().any(|slot| due(slot).is_some())
    }

    /// What of these is finished and not committed.
    pub(super) fn of(slots: &[Arc<Slot>]) -> Self {
        let part = |slot: &Arc<Slot>| {
            let (mark, pending) = slot.outbox.take(|| due(slot))?;
            Some(Part { slot: slot.clone(), mark, pending })
        };
        Self { parts: slots.iter().filter_map(part).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Without what was given away meanwhile: that is its next owner's to send.
    pub(super) fn ours(mut self) -> Self {
        self.parts.retain(|part| !part.slot.outbox.is_closed());
        self
    }

    pub(super) fn offsets(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for Part { slot, mark, .. } in &self.parts {
            list.add_partition_offset(&slot.topic, slot.partition, Offset::Offset(*mark))
                .expect("a mark is an offset of Kafka's or one more, and none is negative");
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
            part.slot.set_committed(part.mark);
        }
    }
}

/// The mark, if it is not committed.
fn due(slot: &Slot) -> Option<i64> {
    slot.mark().filter(|mark| Some(*mark) != slot.committed())
}
