//! A real Apache Kafka, librdkafka's mock cluster, and what fills the topics of both.

mod builder;
mod libs;
mod message;
mod mock;
mod producer;
mod rebalance_delay;
mod server;
mod topic;

pub use builder::KafkaServerBuilder;
pub use message::Message;
pub use mock::MockKafka;
pub use producer::{Delivered, Producer};
pub use server::KafkaServer;
pub use topic::create_topic;

use rdkafka::ClientConfig;

/// Settings of a consumer whose tests should not wait: it starts at the first message, commits
/// nothing by itself, and is missed soon after it has died.
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
