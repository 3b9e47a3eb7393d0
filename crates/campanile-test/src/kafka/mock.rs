use super::producer::Producer;
use super::{consumer_config, rebalance_delay};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;

/// librdkafka's mock cluster: brokers in this process, on loopback ports, there at once.
///
/// Groups, cooperative rebalances, commits and injected errors work. It does no transactions, no
/// admin calls and no more than 5 MiB a partition, and it creates a topic of four partitions for
/// whoever asks for one that is not there; [`KafkaServer`](crate::KafkaServer) is the real thing.
///
/// The cluster ends when this is dropped.
#[derive(Debug)]
pub struct MockKafka {
    /// Owns the cluster.
    producer: Producer,
    brokers: i32,
}

impl MockKafka {
    /// Starts a cluster of this many brokers.
    ///
    /// # Errors
    ///
    /// When librdkafka cannot start it.
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

    /// Creates a topic, replicated on every broker.
    ///
    /// # Errors
    ///
    /// When there is one of this name.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        self.cluster().create_topic(name, partitions, self.brokers)
    }

    /// What fills the topics.
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// A consumer's settings: from the first message on, no automatic commits, a session of 1.5 s
    /// and a heartbeat of 0.1 s. Add to it what the test is about.
    pub fn consumer_config(&self, group: &str) -> ClientConfig {
        consumer_config(&self.bootstrap(), group, "1500")
    }

    /// The cluster itself, to take brokers down, to move leaders and to inject errors. It cannot be
    /// sent to another thread: take it anew where it is needed.
    pub fn cluster(&self) -> MockCluster<'_, impl ClientContext + use<>> {
        self.producer.client().mock_cluster().expect("the producer was made with a mock cluster")
    }
}
