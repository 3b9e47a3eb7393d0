//! A real Apache Kafka, librdkafka's mock cluster, and a producer for both.

mod acl;
mod admin;
mod builder;
mod message;
mod mock;
mod producer;
mod raw;
mod rebalance_delay;
mod secured;
mod server;
mod topic;

pub use acl::Acl;
pub use admin::KafkaAdmin;
pub use builder::KafkaServerBuilder;
pub use message::Message;
pub use mock::MockKafka;
pub use producer::{Delivered, Producer};
pub use server::KafkaServer;
pub use topic::create_topic;

use rdkafka::ClientConfig;

/// Creates the settings of a consumer for tests that should not wait: it starts at the first
/// message, does not commit automatically, and its group soon notices its death.
fn consumer_config(bootstrap: &str, group: &str, session_timeout: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "10")
        .set("heartbeat.interval.ms", "100")
        .set("session.timeout.ms", session_timeout);
    config
}
