//! The committed offsets of a consumer group.

use std::time::Duration;

use campanile_test::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until this group has committed every produced record of a topic.
pub(crate) fn wait_until_committed(
    config: &ClientConfig,
    topic: &str,
    partitions: i32,
    within: Duration,
) {
    let mut commits = Commits::new(config, &[topic], partitions);
    eventually(within, || commits.are_complete().then_some(())).unwrap_or_else(|| {
        panic!("timed out after {within:?} waiting for all records to be committed")
    });
}

/// The commits of a group.
pub(crate) struct Commits {
    consumer: BaseConsumer,
    partitions: TopicPartitionList,
    /// The end of each partition, once it is known.
    ends: Option<Vec<i64>>,
}

impl Commits {
    pub(crate) fn new(config: &ClientConfig, topics: &[&str], partitions: i32) -> Self {
        let mut list = TopicPartitionList::new();
        for topic in topics {
            list.add_partition_range(topic, 0, partitions - 1);
        }
        Self { consumer: config.create().unwrap(), partitions: list, ends: None }
    }

    /// Checks whether the group has committed every record of its topics, also the copies that it
    /// has produced itself. Not if the broker does not answer.
    pub(crate) fn are_complete(&mut self) -> bool {
        self.check().unwrap_or(false)
    }

    fn check(&mut self) -> Option<bool> {
        let committed = self.consumer.committed_offsets(self.partitions.clone(), REQUEST_TIMEOUT);
        let committed = committed.ok()?;
        if self.ends.as_ref().is_some_and(|ends| !is_at(&committed, ends)) {
            return Some(false);
        }
        // Read after the commits, so that these include the copies of all committed records.
        let end = |topic: &str, partition| {
            Some(self.consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT).ok()?.1)
        };
        let partitions = self.partitions.elements();
        let ends: Option<Vec<_>> =
            partitions.iter().map(|it| end(it.topic(), it.partition())).collect();
        let ends = self.ends.insert(ends?);
        Some(is_at(&committed, ends))
    }
}

/// Checks whether these offsets are committed. Nothing is committed of an empty partition.
fn is_at(committed: &TopicPartitionList, ends: &[i64]) -> bool {
    let committed = committed.elements();
    let mut offsets = committed.iter().map(|it| it.offset()).zip(ends);
    offsets.all(|(offset, end)| *end == 0 || offset == Offset::Offset(*end))
}
