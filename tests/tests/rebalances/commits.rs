//! All commits of a group, as recorded by the broker.

use std::time::Duration;

use campanile_test::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

const OFFSETS_TOPIC: &str = "__consumer_offsets";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// In milliseconds, on the broker's clock.
    pub(crate) at: u64,
}

/// Reads the commits in order. The topic is compacted, but only in closed segments, and its first
/// segment is far larger than these tests fill.
pub(crate) fn read(config: &ClientConfig, group: &str) -> Vec<Commit> {
    let mut config = config.clone();
    config.set("group.id", format!("{group}-auditor"));
    let consumer: BaseConsumer = config.create().unwrap();
    let end = consumer.fetch_watermarks(OFFSETS_TOPIC, 0, REQUEST_TIMEOUT).unwrap().1;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(OFFSETS_TOPIC, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut commits = Vec::new();
    let all_read = || {
        while let Some(message) = consumer.poll(Duration::from_millis(100)) {
            let Ok(message) = message else { continue };
            commits.extend(parse_commit(&message, group));
            if message.offset() == end - 1 {
                return Some(());
            }
        }
        None
    };
    eventually(TIMEOUT, all_read).expect("the commits are readable");
    commits
}

/// Parses a record if it is a commit of this group. Its key consists of a version (two bytes, 0 or
/// 1), the group, the topic and the partition. Its value starts with a version and the offset.
fn parse_commit(message: &impl Message, group: &str) -> Option<Commit> {
    let (version, key) = message.key()?.split_first_chunk()?;
    let (group_name, key) = split_string(key)?;
    if u16::from_be_bytes(*version) > 1 || group_name != group.as_bytes() {
        return None;
    }
    let (_topic, partition) = split_string(key)?;
    let offset = message.payload()?.get(2..)?.first_chunk()?;
    Some(Commit {
        partition: i32::from_be_bytes(*partition.first_chunk()?),
        offset: i64::from_be_bytes(*offset),
        at: message.timestamp().to_millis()?.try_into().ok()?,
    })
}

/// Splits the bytes into a string, which follows its length of two bytes, and the rest.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}
