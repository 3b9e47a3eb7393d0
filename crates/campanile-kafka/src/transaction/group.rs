//! What the group says is committed.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// Whether the group has come to all of these offsets: together they were committed, or none was. Waits
/// at most for `patience`.
///
/// It asks as one who is not in the group, and after what is still being committed.
pub(super) fn has_come_to(
    offsets: &TopicPartitionList,
    consumer: &ClientConfig,
    patience: Duration,
) -> Result<bool, KafkaError> {
    let consumer: BaseConsumer = consumer.create()?;
    let committed = consumer.committed_offsets(offsets.clone(), patience)?;
    for element in committed.elements() {
        element.error()?;
    }
    let committed = committed.to_topic_map();
    let has_come = |(place, mark): (_, &Offset)| match (committed.get(place), mark) {
        (Some(Offset::Offset(committed)), Offset::Offset(mark)) => committed >= mark,
        _ => false,
    };
    Ok(offsets.to_topic_map().iter().all(has_come))
}
