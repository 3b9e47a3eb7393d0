use super::producer::Producer;
use super::{consumer_config, rebalance_delay};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;

/// librdkafka's mock cluster: brokers in this process, on loopback ports, available at once.
///
/// Groups, cooperative rebalances, commits and injected errors work. The cluster does not support
/// transactions or admin calls, holds at most 5 MiB per partition, and creates a topic with four
/// partitions when a client asks for a topic that does not exist.
/// [`KafkaServer`](crate::KafkaServer) is a real broker.
///
/// Dropping this value stops the cluster.
#[derive(Debug)]
#[must_use = "the brokers stop when this is dropped"]
pub struct MockKafka {
    /// Owns the cluster.
    producer: Producer,
    brokers: i32,
}

impl MockKafka {
    /// Starts a cluster with this many brokers.
    ///
    /// # Errors
    ///
    /// Fails if librdkafka cannot start the cluster.
    pub fn start(brokers: u8) -> Result<Self, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("test.mock.num.brokers", brokers.max(1).to_string());
        let producer = Producer::from_config(&mut config)?;
        rebalance_delay::remove(producer.client());
        Ok(Self { producer, brokers: brokers.max(1).into() })
    }

    /// The brokers' addresses, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.cluster().bootstrap_servers()
    }

    /// Creates a topic, replicated to every broker.
    ///
    /// # Errors
    ///
    /// Fails if a topic of this name exists.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        self.cluster().create_topic(name, partitions, self.brokers)
    }

    /// The cluster's producer.
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Creates the settings of a consumer: it starts at the first message, does not commit
    /// automatically, and has a session timeout of 3 s and a heartbeat interval of 0.1 s. Add the
    /// settings that the test is about.
    pub fn consumer_config(&self, group: &str) -> ClientConfig {
        consumer_config(&self.bootstrap(), group, "3000")
    }

    /// The cluster itself, to take brokers down, move leaders and inject errors. The value cannot
    /// be sent to another thread; call this method again there.
    pub fn cluster(&self) -> MockCluster<'_, impl ClientContext + use<>> {
        self.producer.client().mock_cluster().expect("the producer was made with a mock cluster")
    }
}
