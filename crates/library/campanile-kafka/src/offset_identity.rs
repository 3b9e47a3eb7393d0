//! The identity of the log for which an offset is committed: the id of its topic and of its cluster, in the
//! metadata of the commit, and the leader epoch.

use campanile_driver::source::Assignment;
use rdkafka::{Offset, TopicPartitionList};

use crate::native;

/// The start of the metadata of the offsets that are committed. The id of the topic follows.
const TOPIC_ID: &str = "topic-id=";

/// What follows the id of the topic, if the id of the cluster follows.
const CLUSTER_ID: &str = " cluster-id=";

/// Adds the offset of a partition to a list that is to be committed, with the identity of its log: the id
/// of the topic as metadata, and the leader epoch.
pub(crate) fn add_offset(
    list: &mut TopicPartitionList,
    assignment: &Assignment,
    offset: i64,
    leader_epoch: Option<i32>,
) {
    let (topic, partition) = (&*assignment.topic, assignment.partition);
    let mut element = list.add_partition(topic, partition);
    let valid = element.set_offset(Offset::Offset(offset));
    valid.expect("a watermark is a Kafka offset or one more, and never negative");
    if let Some(id) = assignment.log_id() {
        let cluster = assignment.cluster_id.get().map(|id| format!("{CLUSTER_ID}{id}"));
        element.set_metadata(commit_metadata(id) + &cluster.unwrap_or_default());
    }
    if let Some(epoch) = leader_epoch {
        native::set_last_leader_epoch(list, epoch);
    }
}

/// Creates the metadata of an offset that is committed for the topic with this id.
pub fn commit_metadata(topic_id: &str) -> String {
    format!("{TOPIC_ID}{topic_id}")
}

/// Reads the id of the topic for which the offset of this partition was committed, if it is known.
pub fn committed_topic_id<'a>(
    list: &'a TopicPartitionList,
    topic: &str,
    partition: i32,
) -> Option<&'a str> {
    Some(log_ids(native::offset_details(list, topic, partition).1)?.0)
}

/// Reads the id of the topic, and that of the cluster, from the metadata of a committed offset, if a
/// consumer of this library has committed it.
pub(crate) fn log_ids(metadata: &[u8]) -> Option<(&str, Option<&str>)> {
    let ids = std::str::from_utf8(metadata).ok()?.strip_prefix(TOPIC_ID)?;
    Some(match ids.split_once(CLUSTER_ID) {
        Some((topic, cluster)) => (topic, Some(cluster)),
        None => (ids, None),
    })
}
