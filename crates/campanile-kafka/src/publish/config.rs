//! What users say about a publisher.

use std::fmt;
use std::time::Duration;

use campanile_core::ConfigError;
use rdkafka::ClientConfig;

use super::Terms;
use crate::ConsumerConfig;

/// The settings of a [`Publisher`](super::Publisher). Brokers alone convert into them, and so does a
/// [`ConsumerConfig`], of which all is taken over but what is a consumer's alone.
///
/// `Debug` prints no values of settings.
#[derive(Clone)]
pub struct PublisherConfig {
    client: ClientConfig,
    terms: Terms,
}

impl PublisherConfig {
    /// For these brokers (`host:port`, separated by commas).
    pub fn new(brokers: impl Into<String>) -> Self {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", brokers);
        client.into()
    }

    /// Sets one of librdkafka's settings. It wins over these defaults: `enable.idempotence=true`; no batches,
    /// so that one message that is refused has no others refused; `compression.type=lz4`;
    /// `partitioner=murmur2_random`, as Kafka's own clients have it; and `message.max.bytes=100000000`, for
    /// what is too large the topic decides.
    ///
    /// What contradicts is refused by [`Publisher::new`](super::Publisher::new): `acks` is `all`,
    /// `message.timeout.ms` follows from [`with_timeout`](Self::with_timeout), there are no transactions, and
    /// the brokers are those that it was made with.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.terms.set(name, value);
        self
    }

    /// How long one publication may take; what is refused is tried again meanwhile. At least 1 s. Default:
    /// 10 s, in which a leader is elected anew; who publishes what must not be lost tries again after that.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.terms.set_budget(timeout);
        self
    }

    pub(super) fn checked(self) -> Result<(ClientConfig, Terms), ConfigError> {
        let Self { mut client, terms } = self;
        let brokers = client.get("bootstrap.servers").or(client.get("metadata.broker.list"));
        if brokers.is_none_or(|brokers| brokers.trim().is_empty()) {
            return Err(ConfigError::new("`bootstrap.servers` must be set"));
        }
        if client.get("enable.idempotence").is_none() {
            client.set("enable.idempotence", "true");
        }
        Ok((client, terms))
    }
}

impl From<ClientConfig> for PublisherConfig {
    fn from(client: ClientConfig) -> Self {
        Self { client, terms: Terms::new(Duration::from_secs(10)) }
    }
}

impl From<ConsumerConfig> for PublisherConfig {
    fn from(config: ConsumerConfig) -> Self {
        config.0.into()
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
            .field("terms", &self.terms)
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
    fn what_contradicts_a_publication_is_refused() {
        assert_eq!(refused(""), "`bootstrap.servers` must be set");
        for (name, value) in
            [("acks", "1"), ("transactional.id", "t"), ("bootstrap.servers", "b:1")]
        {
            let error = refused(PublisherConfig::new("b:1").set(name, value));
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn its_debug_shows_no_secrets() {
        let config = PublisherConfig::new("b:1").set("sasl.password", "s3cret");
        assert!(!format!("{config:?}").contains("s3cret"));
        let consumer = ConsumerConfig::new("b:1", "g").set("sasl.password", "s3cret");
        assert!(!format!("{:?}", PublisherConfig::from(consumer)).contains("s3cret"));
    }
}
