//! The group's committed offsets.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, TopicPartitionList};

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
