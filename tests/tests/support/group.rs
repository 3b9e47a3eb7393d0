//! The committed offsets of a consumer group.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_test::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until this group has committed every produced record. A partition whose records were all
/// deleted has none.
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
        let watermarks = || consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT).ok();
        // A busy broker may have lost its leadership for a moment.
        let (first, end) = eventually(within, watermarks).expect("the broker reports the end");
        if first < end {
            ends.insert(partition, end);
        }
    }
    let mut behind = Vec::new();
    let committed = || {
        let committed = consumer.committed_offsets(list.clone(), REQUEST_TIMEOUT).ok()?;
        let offset = |partition: i32| Some(committed.find_partition(topic, partition)?.offset());
        let offsets = ends.iter().map(|(partition, end)| (*partition, offset(*partition), *end));
        behind = offsets.filter(|(_, found, end)| *found != Some(Offset::Offset(*end))).collect();
        behind.is_empty().then_some(())
    };
    let is_committed = eventually(within, committed).is_some();
    assert!(
        is_committed,
        "timed out after {within:?} waiting for all records of {topic} to be committed; the \
         partitions, what is committed and the end: {behind:?}"
    );
}
