//! The group's committed offsets.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use crate::client::ClientSettings;
use crate::native::set_oauth_token;
use crate::oauth::{OauthTokens, TOKEN_TIMEOUT};

/// A client that reads the group's offsets without being a member of the group.
pub(crate) struct GroupOffsets {
    consumer: BaseConsumer,
    tokens: Option<Arc<OauthTokens>>,
}

impl GroupOffsets {
    pub(crate) fn connect(consumer: &ClientSettings) -> Result<Self, KafkaError> {
        Ok(Self { consumer: consumer.create()?, tokens: consumer.tokens.clone() })
    }

    /// Returns the client, for further requests after [`committed`](Self::committed).
    pub(crate) fn consumer(&self) -> &BaseConsumer {
        &self.consumer
    }

    /// Fetches the committed offset of each of these partitions. Waits at most `timeout`, and for
    /// an OAuth token.
    ///
    /// # Errors
    /// Also fails while a transaction that contains offsets of these partitions is open.
    pub(crate) fn committed(
        &self,
        partitions: &TopicPartitionList,
        timeout: Duration,
    ) -> Result<TopicPartitionList, KafkaError> {
        // The client is not polled, so librdkafka's requests for tokens are not answered.
        if let Some(tokens) = &self.tokens
            && let Some(token) = tokens.latest(TOKEN_TIMEOUT)
        {
            set_oauth_token(self.consumer.client(), token);
        }
        let committed = self.consumer.committed_offsets(partitions.clone(), timeout)?;
        for element in committed.elements() {
            element.error()?;
        }
        Ok(committed)
    }
}
