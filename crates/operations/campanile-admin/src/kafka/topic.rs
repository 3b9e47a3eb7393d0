//! The partitions of a topic.

use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::{Context, TopicConfig, fetch_metadata};
use crate::AdminError;

/// Returns the numbers of the topic's partitions. Waits for a broker for at most this time.
///
/// # Errors
/// Fails if there is no such topic, or if the brokers cannot be reached or refuse the request.
pub(crate) fn partitions(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<i32>, AdminError> {
    let metadata = fetch_metadata(consumer, Some(topic), timeout)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let partitions = found.map_or(&[][..], |found| found.partitions());
    match found.and_then(|found| found.error()).map(Code::from) {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {}
        Some(error) => {
            let action = format!("cannot look up the topic `{topic}`");
            return Err(consumer.context().error(&action, KafkaError::MetadataFetch(error)));
        }
        None if partitions.is_empty() => {}
        None => return Ok(partitions.iter().map(|partition| partition.id()).collect()),
    }
    Err(ConfigError::new(format!("there is no topic `{topic}`")).into())
}

/// Reads the settings of a topic. `None` if the brokers do not say.
pub(crate) async fn fetch_config(
    kafka: &ClientConfig,
    topic: &str,
    timeout: Duration,
) -> Option<TopicConfig> {
    let mut config = kafka.clone();
    // Settings of consumers only; librdkafka would log a warning.
    config.remove("isolation.level").remove("group.id");
    let admin = AdminClient::from_config_and_context(&config, Context::new("Describe")).ok()?;
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let described = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
    // Dropping the client blocks.
    tokio::task::spawn_blocking(move || drop(admin));
    Some(described.ok()?.into_iter().next()?.ok()?.into())
}

/// Checks that a topic with these partitions has this one.
///
/// # Errors
/// Fails if it has not.
pub(crate) fn check_partition(
    topic: &str,
    partitions: &[i32],
    partition: i32,
) -> Result<(), ConfigError> {
    if partitions.contains(&partition) {
        return Ok(());
    }
    let count = partitions.len();
    Err(ConfigError::new(format!(
        "the topic `{topic}` has no partition {partition}: it has {count}"
    )))
}
