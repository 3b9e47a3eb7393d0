//! The group and its partitions, as the brokers know them. Joins no group and commits nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use crate::AdminError;
use crate::kafka::{Context, Members, Partition, committed_offsets, fetch_metadata, observer};

/// By default, the ends are those before the first open transaction, and the brokers do not show the
/// group's offsets while one of them is part of an open transaction.
const SETTINGS: &[(&str, &str)] = &[("isolation.level", "read_uncommitted")];

/// What the brokers know of a group.
pub(super) struct GroupLook {
    /// `None`: unknown.
    pub(super) state: Option<String>,
    /// `None`: unknown.
    pub(super) members: Option<usize>,
    pub(super) partitions: BTreeMap<Partition, PartitionLook>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PartitionLook {
    pub(super) committed: Option<i64>,
    pub(super) end: Option<i64>,
    pub(super) member: Option<String>,
}

pub(super) struct Reader {
    consumer: BaseConsumer<Context>,
    group: String,
    topics: Vec<String>,
    timeout: Duration,
}

impl Reader {
    pub(super) fn new(
        kafka: &ClientConfig,
        group: &str,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Self, AdminError> {
        let consumer = observer(kafka, group, "Describe", SETTINGS)?;
        Ok(Self { consumer, group: group.to_owned(), topics: topics.to_vec(), timeout })
    }

    /// Asks the brokers. Blocks the thread.
    pub(super) fn look(&self) -> Result<GroupLook, AdminError> {
        self.consumer.context().clear();
        let known = self.partitions()?;
        let Members { state, count, owners } =
            Members::fetch(&self.consumer, &self.group, self.timeout);
        let action = format!("cannot read the offsets of the group `{}`", self.group);
        let committed = self.committed(&known).map_err(|error| self.error(&action, error))?;
        let mut partitions = BTreeMap::new();
        for partition in known {
            let look = PartitionLook {
                committed: committed.get(&partition).copied(),
                end: None,
                member: owners.get(&partition).cloned(),
            };
            // Without given topics, those of the group are meant.
            if !self.topics.is_empty() || look.committed.is_some() || look.member.is_some() {
                partitions.insert(partition, look);
            }
        }
        let ends = self.ends(partitions.keys());
        for (partition, end) in ends.map_err(|error| self.error("cannot read the ends", error))? {
            if let Some(look) = partitions.get_mut(&partition) {
                look.end = Some(end);
            }
        }
        Ok(GroupLook { state, members: count, partitions })
    }

    /// The partitions of the given topics, or of all topics but those of Kafka itself.
    fn partitions(&self) -> Result<BTreeSet<Partition>, AdminError> {
        let mut partitions = BTreeSet::new();
        let one = if let [topic] = &self.topics[..] { Some(topic.as_str()) } else { None };
        let metadata = fetch_metadata(&self.consumer, one, self.timeout)?;
        let is_meant = |name: &str| match self.topics.is_empty() {
            true => !name.starts_with("__"),
            false => self.topics.iter().any(|topic| topic == name),
        };
        for topic in metadata.topics().iter().filter(|topic| is_meant(topic.name())) {
            let name = topic.name().to_owned();
            partitions.extend(topic.partitions().iter().map(|it| (name.clone(), it.id())));
        }
        for topic in &self.topics {
            if !partitions.iter().any(|(name, _)| name == topic) {
                let text = format!(
                    "there is no topic `{topic}`, or the user is not allowed `Describe` on the topic"
                );
                return Err(ConfigError::new(text).into());
            }
        }
        Ok(partitions)
    }

    fn committed(&self, partitions: &BTreeSet<Partition>) -> KafkaResult<BTreeMap<Partition, i64>> {
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (topic, partition) in partitions {
            list.add_partition(topic, *partition);
        }
        offsets(&committed_offsets(&self.consumer, &list, self.timeout)?)
    }

    fn ends<'a>(
        &self,
        partitions: impl Iterator<Item = &'a Partition>,
    ) -> KafkaResult<BTreeMap<Partition, i64>> {
        let mut list = TopicPartitionList::new();
        for (topic, partition) in partitions {
            // In place of a time, it asks for the offset behind the last record.
            list.add_partition_offset(topic, *partition, Offset::End)?;
        }
        if list.count() == 0 {
            return Ok(BTreeMap::new());
        }
        offsets(&self.consumer.offsets_for_times(list, self.timeout)?)
    }

    fn error(&self, action: &str, error: KafkaError) -> AdminError {
        self.consumer.context().error(action, error)
    }
}

/// The offsets in the list. Partitions that have no leader for now have none.
fn offsets(list: &TopicPartitionList) -> KafkaResult<BTreeMap<Partition, i64>> {
    let mut offsets = BTreeMap::new();
    for element in list.elements() {
        match element.error() {
            Err(error) if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) => {
                return Err(error);
            }
            Err(_) => continue,
            Ok(()) => {}
        }
        if let Offset::Offset(offset) = element.offset() {
            offsets.insert((element.topic().to_owned(), element.partition()), offset);
        }
    }
    Ok(offsets)
}
