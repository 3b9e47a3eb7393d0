//! The commits of a group, as the broker recorded them.

use std::time::{Duration, SystemTime};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::HistoryRecorder;
use crate::{ServerError, eventually};

const OFFSETS_TOPIC: &str = "__consumer_offsets";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the broker may take to return all commits.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often the two clocks are compared.
const CLOCK_READINGS: u32 = 8;

struct Commit {
    topic: String,
    partition: i32,
    offset: i64,
    metadata: String,
    /// In milliseconds, on the broker's clock.
    at: u64,
}

impl HistoryRecorder {
    /// Reads all commits of a group from the broker, and records them. Returns their number. Blocks
    /// the thread.
    ///
    /// The broker keeps each commit until its topic is compacted, which needs more commits than a
    /// test makes. Its timestamps are truncated to milliseconds: set `tolerance` in the
    /// [settings](campanile_history::Settings) to 2 ms at least. The broker must be on this machine.
    ///
    /// # Errors
    /// Fails if the broker does not answer.
    pub fn record_commits(&self, config: &ClientConfig, group: &str) -> Result<usize, ServerError> {
        self.record_commits_as(config, group, |topic, _, _| topic.to_owned())
    }

    /// Records all commits of a group as [`record_commits`](Self::record_commits) does, with other names of
    /// the topics. The function gets the name of the topic, the metadata of the commit, and its time in
    /// microseconds of the history's clock. Needed for topics that were deleted and created again, which have another name
    /// each time.
    ///
    /// # Errors
    /// Fails if the broker does not answer.
    pub fn record_commits_as(
        &self,
        config: &ClientConfig,
        group: &str,
        name: impl Fn(&str, &str, u64) -> String,
    ) -> Result<usize, ServerError> {
        let mut config = config.clone();
        config.set("group.id", format!("{group}-auditor")).set("enable.partition.eof", "true");
        // A fetch that finds nothing new ends at once.
        config.set("fetch.wait.max.ms", "10");
        let consumer: BaseConsumer = config.create()?;
        config.set("isolation.level", "read_uncommitted");
        let uncommitted: BaseConsumer = config.create()?;
        let metadata = answer_of(|| consumer.fetch_metadata(Some(OFFSETS_TOPIC), REQUEST_TIMEOUT))?;
        let mut count = 0;
        let convert = self.timestamp_converter();
        for topic in metadata.topics() {
            for partition in topic.partitions() {
                for commit in read(&consumer, &uncommitted, partition.id(), group)? {
                    let at = convert(commit.at);
                    let topic = name(&commit.topic, &commit.metadata, at);
                    self.committed(at, &topic, commit.partition, commit.offset);
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Creates a function that converts timestamps of a broker on this machine, in milliseconds
    /// since 1970, to microseconds of the history's clock. Brokers truncate their timestamps to
    /// milliseconds.
    pub fn timestamp_converter(&self) -> impl Fn(u64) -> u64 + use<> {
        // How far the broker's clock is ahead of the history's. Too small if this thread is
        // suspended between the two readings.
        let ahead = |_| unix_micros().saturating_sub(self.now());
        let ahead = (0..CLOCK_READINGS).map(ahead).max().unwrap_or_default();
        move |millis| (millis * 1_000).saturating_sub(ahead)
    }
}

/// Reads the commits of a group from a partition of the topic of all commits, in order. Those of
/// transactions that were aborted are no commits, and those of open ones are awaited.
fn read(
    consumer: &BaseConsumer,
    uncommitted: &BaseConsumer,
    partition: i32,
    group: &str,
) -> Result<Vec<Commit>, ServerError> {
    let end_of = |consumer: &BaseConsumer| {
        let watermarks = consumer.fetch_watermarks(OFFSETS_TOPIC, partition, REQUEST_TIMEOUT);
        watermarks.map(|(_, end)| end)
    };
    let end = answer_of(|| end_of(uncommitted))?;
    let mut commits = Vec::new();
    if end == 0 {
        return Ok(commits);
    }
    let not_ready = || ServerError::NotReady {
        server: "the topic of the group's commits".into(),
        within: TIMEOUT,
        log: String::new(),
    };
    let is_decided = || end_of(consumer).is_ok_and(|decided| decided >= end).then_some(());
    eventually(TIMEOUT, is_decided).ok_or_else(not_ready)?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(OFFSETS_TOPIC, partition, Offset::Beginning)?;
    consumer.assign(&list)?;
    let all_read = || {
        while let Some(message) = consumer.poll(POLL_TIMEOUT) {
            match message {
                Ok(message) => commits.extend(parse_commit(&message, group)),
                // The last messages may be markers of transactions, which are not returned.
                Err(KafkaError::PartitionEOF(_)) => return Some(()),
                // Errors are those of connections, which librdkafka opens again.
                Err(_) => {}
            }
        }
        None
    };
    let read = eventually(TIMEOUT, all_read);
    read.ok_or_else(not_ready)?;
    Ok(commits)
}

/// Sends a request until it succeeds, or time is up: a busy broker may have lost its leadership for
/// a moment.
fn answer_of<T>(mut request: impl FnMut() -> KafkaResult<T>) -> KafkaResult<T> {
    let mut last = request();
    eventually(TIMEOUT, || {
        if last.is_err() {
            last = request();
        }
        last.is_ok().then_some(())
    });
    last
}

/// Parses a record if it is a commit of this group. Its key consists of a version (two bytes, 0 or
/// 1), the group, the topic and the partition. Its value starts with a version, the offset and, since
/// version 3, the leader epoch; the metadata follows.
fn parse_commit(message: &impl Message, group: &str) -> Option<Commit> {
    let (version, key) = message.key()?.split_first_chunk()?;
    let (group_name, key) = split_string(key)?;
    if u16::from_be_bytes(*version) > 1 || group_name != group.as_bytes() {
        return None;
    }
    let (topic, partition) = split_string(key)?;
    let (version, value) = message.payload()?.split_first_chunk()?;
    let (offset, value) = value.split_first_chunk()?;
    let metadata = match u16::from_be_bytes(*version) {
        0..3 => split_string(value)?.0,
        3 => split_string(value.get(4..)?)?.0,
        // The length is a varint, of one byte if it is short, and one larger.
        _ => {
            let (length, text) = value.get(4..)?.split_first()?;
            text.get(..usize::from(*length).checked_sub(1)?)?
        }
    };
    Some(Commit {
        topic: std::str::from_utf8(topic).ok()?.to_owned(),
        partition: i32::from_be_bytes(*partition.first_chunk()?),
        offset: i64::from_be_bytes(*offset),
        metadata: std::str::from_utf8(metadata).ok()?.to_owned(),
        at: message.timestamp().to_millis()?.try_into().ok()?,
    })
}

/// Splits the bytes into a string, which follows its length of two bytes, and the rest.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

/// Reads the clock that brokers use.
#[expect(clippy::disallowed_methods, reason = "commits have no other time")]
fn unix_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_micros() as u64)
}
