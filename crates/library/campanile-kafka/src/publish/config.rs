//! The configuration of a publisher.

use std::fmt;
use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::ClientConfig;

use super::PublishSettings;
use super::producer_config::{TRANSACTIONAL_ID, check_override};
use crate::ConsumerConfig;
use crate::client::ClientSettings;

/// The configuration of a [`Publisher`](super::Publisher). A string of brokers converts into it, and so
/// does a [`ConsumerConfig`], except for the settings that are specific to consumers.
///
/// `Debug` does not print the values of settings.
#[derive(Clone)]
#[must_use]
pub struct PublisherConfig {
    client: ClientSettings,
    publish_settings: PublishSettings,
}

impl PublisherConfig {
    /// Creates a configuration with these brokers (`host:port`, separated by commas).
    pub fn new(brokers: impl Into<String>) -> Self {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", brokers);
        client.into()
    }

    /// Sets a librdkafka setting. It overrides these defaults:
    ///
    /// * `enable.idempotence=true`.
    /// * No batches, so that a refused message does not cause others to be refused.
    /// * `compression.type=lz4`.
    /// * `partitioner=murmur2_random`: the same as in Kafka's own clients.
    /// * `message.max.bytes=100000000`: the topic decides which messages are too large.
    ///
    /// [`Publisher::new`](super::Publisher::new) refuses contradictory settings: `acks` is `all`,
    /// `message.timeout.ms` follows from [`with_timeout`](Self::with_timeout), there are no
    /// transactions, and the brokers are those passed to the constructor.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.publish_settings.set(name, value);
        self
    }

    /// Sets how long one publication may take. A refused message is retried within this time. At least
    /// 1 s.
    ///
    /// Default: 10 s, which is enough to elect a new leader. After that, a caller that must not lose the
    /// message publishes it again.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.publish_settings.set_budget(timeout);
        self
    }

    pub(super) fn checked(self) -> Result<(ClientSettings, PublishSettings), ConfigError> {
        let Self { mut client, publish_settings } = self;
        if client.brokers().is_none_or(|brokers| brokers.trim().is_empty()) {
            return Err(ConfigError::new("`bootstrap.servers` must be set"));
        }
        if let Some(id) = client.get(TRANSACTIONAL_ID) {
            check_override(TRANSACTIONAL_ID, id)?;
        }
        if client.get("enable.idempotence").is_none() {
            client.set("enable.idempotence", "true");
        }
        Ok((client, publish_settings))
    }
}

impl From<ClientConfig> for PublisherConfig {
    fn from(client: ClientConfig) -> Self {
        ConsumerConfig::from(client).into()
    }
}

impl From<ConsumerConfig> for PublisherConfig {
    fn from(config: ConsumerConfig) -> Self {
        let publish_settings = PublishSettings::new(Duration::from_secs(10));
        Self { client: config.client, publish_settings }
    }
}

impl From<&str> for PublisherConfig {
    fn from(brokers: &str) -> Self {
        Self::new(brokers)
    }
}

impl From<String> for PublisherConfig {
    fn from(brokers: String) -> Self {
        Self::new(brokers)
    }
}

impl fmt::Debug for PublisherConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherConfig")
            .field("bootstrap.servers", &self.client.get("bootstrap.servers"))
            .field("publish_settings", &self.publish_settings)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Publisher;

    fn refused(config: impl Into<PublisherConfig>) -> String {
        Publisher::new(config).unwrap_err().to_string()
    }

    #[test]
    fn contradictory_settings_are_refused() {
        assert_eq!(refused(""), "`bootstrap.servers` must be set");
        for (name, value) in
            [("acks", "1"), ("transactional.id", "t"), ("bootstrap.servers", "b:1")]
        {
            let error = refused(PublisherConfig::new("b:1").set(name, value));
            assert!(error.contains(name), "{error}");
        }
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", "b:1").set("transactional.id", "t");
        assert!(refused(client).contains("transactional.id"));
    }

    #[test]
    fn debug_shows_no_secrets() {
        let config = PublisherConfig::new("b:1").set("sasl.password", "s3cret");
        assert!(!format!("{config:?}").contains("s3cret"));
        let consumer = ConsumerConfig::new("b:1", "g").set("sasl.password", "s3cret");
        assert!(!format!("{:?}", PublisherConfig::from(consumer)).contains("s3cret"));
    }
}
