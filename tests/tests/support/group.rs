//! The committed offsets of a consumer group.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_test::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until this group has committed every produced record.
pub(crate) fn wait_until_committed(
    config: &ClientConfig,
    topic: &str,
    partitions: i32,
    within: Duration,
) {
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    let mut ends = BTreeMap::new();
    for partition in 0..partitions {
        list.add_partition(topic, partition);
        let end = || Some(consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT).ok()?.1);
        // A busy broker may have lost its leadership for a moment.
        ends.insert(partition, eventually(within, end).expect("the broker reports the end"));
    }
    let committed = || {
        let committed = consumer.committed_offsets(list.clone(), REQUEST_TIMEOUT).ok()?;
        let is_at = |partition: &i32, end: i64| {
            let found = committed.find_partition(topic, *partition);
            found.is_some_and(|found| found.offset() == Offset::Offset(end))
        };
        ends.iter().all(|(partition, end)| is_at(partition, *end)).then_some(())
    };
    eventually(within, committed).unwrap_or_else(|| {
        panic!("timed out after {within:?} waiting for all records to be committed")
    });
}
