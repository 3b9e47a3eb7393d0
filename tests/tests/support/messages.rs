//! The messages of a topic.

use std::time::Duration;

use campanile_test::KafkaServer;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::OwnedMessage;
use rdkafka::{Offset, TopicPartitionList};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Reads all messages of these partitions, in the order of each partition.
pub(crate) fn messages(
    kafka: &KafkaServer,
    topic: &str,
    partitions: i32,
    isolation: &str,
) -> Vec<OwnedMessage> {
    let mut config = kafka.consumer_config("reader");
    config.set("isolation.level", isolation).set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut messages, mut ends) = (Vec::new(), 0);
    while ends < partitions {
        match consumer.poll(TIMEOUT).expect("a record or an end") {
            Ok(message) => messages.push(message.detach()),
            Err(KafkaError::PartitionEOF(_)) => ends += 1,
            Err(error) => panic!("{error}"),
        }
    }
    messages
}
