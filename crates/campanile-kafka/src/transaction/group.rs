//! The committed offsets of the group.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// A client of the group that is not a member of it.
pub(super) struct Group(BaseConsumer);

impl Group {
    pub(super) fn connect(consumer: &ClientConfig) -> Result<Self, KafkaError> {
        Ok(Self(consumer.create()?))
    }

    /// Returns the committed offset of each of these partitions. Waits `timeout` at most.
    ///
    /// # Errors
    /// Also while a transaction that has offsets of these partitions is open.
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

/// Returns whether all of `offsets` are covered by what is committed. Of one transaction all are, or none
/// is.
pub(super) fn covers(committed: &TopicPartitionList, offsets: &TopicPartitionList) -> bool {
    let committed = committed.to_topic_map();
    let is_covered = |(partition, offset): (_, &Offset)| match (committed.get(partition), offset) {
        (Some(Offset::Offset(committed)), Offset::Offset(offset)) => committed >= offset,
        _ => false,
    };
    offsets.to_topic_map().iter().all(is_covered)
}
