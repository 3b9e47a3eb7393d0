//! The group's committed offsets.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// A client that reads the group's offsets without being a member of the group.
pub(super) struct GroupOffsets(BaseConsumer);

impl GroupOffsets {
    pub(super) fn connect(consumer: &ClientConfig) -> Result<Self, KafkaError> {
        Ok(Self(consumer.create()?))
    }

    /// Returns the committed offset of each of these partitions. Waits at most `timeout`.
    ///
    /// # Errors
    /// Also fails while a transaction that contains offsets of these partitions is open.
    pub(super) fn committed(
        &self,
        partitions: &TopicPartitionList,
        timeout: Duration,
    ) -> Result<TopicPartitionList, KafkaError> {
        let committed = self.0.committed_offsets(partitions.clone(), timeout)?;
        for element in committed.elements() {
            element.error()?;
        }
        Ok(committed)
    }
}

/// Checks whether `committed` covers all of `offsets`. Of one transaction's offsets, either all are
/// committed or none.
pub(super) fn covers(committed: &TopicPartitionList, offsets: &TopicPartitionList) -> bool {
    let committed = committed.to_topic_map();
    let is_covered = |(partition, offset): (_, &Offset)| match (committed.get(partition), offset) {
        (Some(Offset::Offset(committed)), Offset::Offset(offset)) => committed >= offset,
        _ => false,
    };
    offsets.to_topic_map().iter().all(is_covered)
}
