//! Requests to the brokers that are repeated, and their errors.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_kafka::topic_id;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use tokio::time::Instant;

use super::Source;
use super::context::Context;
use crate::AdminError;
use crate::kafka::{advice, code, fetch_config};

/// The operation on the dead-letter topic and on the group that the user needs.
pub(super) const READ: &str = "Read";

/// The time between two attempts of a call.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(200);

impl Source {
    pub(super) async fn fetch_topic_id(&self) -> Result<Option<Arc<str>>, AdminError> {
        let (topic, timeout) = (self.topic.clone(), self.timeout);
        let fetch =
            move |consumer: &StreamConsumer<Context>| topic_id(consumer.client(), &topic, timeout);
        self.call("cannot read the id of the topic", READ, fetch).await
    }

    pub(super) async fn fetch_bounds(
        &self,
        partitions: usize,
    ) -> Result<HashMap<i32, (i64, i64)>, AdminError> {
        let (topic, timeout) = (self.topic.clone(), self.timeout);
        self.call("cannot read the ends of the topic", READ, move |consumer| {
            let bounds =
                |partition| Ok((partition, consumer.fetch_watermarks(&topic, partition, timeout)?));
            (0..).take(partitions).map(bounds).collect()
        })
        .await
    }

    /// Counts the partitions of a topic. `None` if the topic does not exist.
    pub(in crate::redrive) async fn partitions_of(
        &self,
        topic: &str,
    ) -> Result<Option<usize>, AdminError> {
        let (name, timeout) = (topic.to_owned(), self.timeout);
        let right = if *topic == *self.topic { READ } else { "Write" };
        self.call(&format!("cannot look up `{topic}`"), right, move |consumer| {
            let metadata = consumer.fetch_metadata(Some(&name), timeout)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name);
            let error = topic.and_then(|topic| topic.error()).map(Code::from);
            match (error, topic.map_or(0, |topic| topic.partitions().len())) {
                (Some(Code::UnknownTopicOrPartition | Code::UnknownTopic), _) | (None, 0) => {
                    Ok(None)
                }
                (Some(error), _) => Err(KafkaError::MetadataFetch(error)),
                (None, partitions) => Ok(Some(partitions)),
            }
        })
        .await
    }

    /// Reads after which time a topic deletes records with their own timestamps, if the brokers say so.
    pub(in crate::redrive) async fn retention_of(&self, topic: &str) -> Option<Duration> {
        let config = fetch_config(&self.kafka, topic, self.timeout).await?;
        let has_own = config.get("message.timestamp.type") == Some("CreateTime");
        config.retention().filter(|_| has_own)
    }

    /// Makes a call that blocks, and repeats it until it succeeds or the timeout is over. A broker
    /// that has just started, or a coordinator that has just moved, refuses some requests. `right` is the
    /// operation on the topic that the user needs.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        action: &str,
        right: &str,
        call: impl Fn(&StreamConsumer<Context>) -> KafkaResult<T> + Send + Sync + 'static,
    ) -> Result<T, AdminError> {
        let (start, call) = (Instant::now(), Arc::new(call));
        loop {
            let (consumer, call) = (self.consumer.clone(), call.clone());
            let result = tokio::task::spawn_blocking(move || call(&consumer)).await;
            match result.unwrap_or(Err(KafkaError::Canceled)) {
                Ok(result) => return Ok(result),
                Err(error) if is_permanent(&error) || start.elapsed() >= self.timeout => {
                    return Err(self.refused(action, error.into(), right));
                }
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Creates the error for a letter that cannot be read.
    pub(super) fn unreadable(&self, error: KafkaError) -> AdminError {
        let unread = self.partitions.iter().filter(|(_, state)| !state.is_read);
        let next = unread.map(|(partition, it)| format!("{}/{partition}@{}", self.topic, it.read));
        let next: Vec<_> = next.collect();
        let action = format!("cannot read the letter at {}", next.join(" or "));
        // The context got the reason of this error, with the offset.
        let reason = self.context().last_error().unwrap_or(error.to_string());
        let advice = advice(error.rdkafka_error_code(), READ, READ).unwrap_or_default();
        let source = format!(
            "{reason}; {advice}; neither this letter nor those behind it were handled: to leave it out, \
             set the offset of the run's group behind it"
        );
        AdminError::unavailable(action, source)
    }

    pub(super) fn context(&self) -> &Context {
        self.consumer.client().context()
    }

    pub(super) fn error(&self, action: &str, error: impl Into<BoxError>) -> AdminError {
        self.refused(action, error.into(), READ)
    }

    /// Creates an error that also says what to do, or what happened last to the connections.
    fn refused(&self, action: &str, error: BoxError, right: &str) -> AdminError {
        let source = match (advice(code(&error), right, READ), self.context().last_error()) {
            (Some(advice), _) => format!("{error}; {advice}").into(),
            (None, Some(last)) if !error.to_string().contains(&last) => {
                format!("{error}: {last}").into()
            }
            _ => error,
        };
        let brokers = self.kafka.get("bootstrap.servers").unwrap_or_default();
        AdminError::unavailable(format!("{action} on Kafka at {brokers}"), source)
    }
}

/// Whether a retry cannot succeed without a change by an operator.
pub(super) fn is_permanent(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(error, KafkaError::MessageConsumptionFatal(_))
        || matches!(code, Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed))
}
