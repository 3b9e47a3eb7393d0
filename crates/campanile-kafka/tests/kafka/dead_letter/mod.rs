//! Records that are given up and kept in a topic for dead letters.

mod published;

use std::time::Duration;

use campanile_kafka::{Consumer, DeadLetter};
use campanile_test::{Message, MockKafka};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::support::{BOUND, consumer};

const DEAD: &str = "orders.dead";

/// A cluster with these orders in one partition, and a topic for dead letters.
fn kafka(payloads: &[&str]) -> MockKafka {
    let kafka = crate::given_up::kafka(payloads);
    kafka.create_topic(DEAD, 1).unwrap();
    kafka
}

fn produce(kafka: &MockKafka, payloads: &[&str]) {
    let message = |payload: &&str| Message::to("orders").partition(0).payload(*payload);
    kafka.producer().produce_all(payloads.iter().map(message)).unwrap();
}

/// A consumer of `orders`, whose dead letters may take a second each.
fn burying(config: ClientConfig) -> Consumer {
    consumer(config, "orders").with_given_up(short())
}

fn short() -> DeadLetter {
    DeadLetter::topic(DEAD).with_timeout(Duration::from_secs(1))
}

/// Lets everything about this topic fail, or again not.
fn unknown(kafka: &MockKafka, topic: &str, unknown: bool) {
    let error = match unknown {
        true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        false => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
    };
    kafka.cluster().topic_error(topic, error).unwrap();
}

/// What is in the only partition of this topic.
fn letters_in(config: &ClientConfig, topic: &str) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = config.create().unwrap();
    let (_, end) = consumer.fetch_watermarks(topic, 0, BOUND).unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let message = |_| consumer.poll(BOUND).expect("a letter within the bound").unwrap().detach();
    (0..end).map(message).collect()
}

fn letters(config: &ClientConfig) -> Vec<OwnedMessage> {
    letters_in(config, DEAD)
}

/// The only header of this name, as text.
fn header(letter: &OwnedMessage, name: &str) -> String {
    let bytes = bytes(letter, name).unwrap_or_else(|| panic!("no header {name}"));
    String::from_utf8(bytes).unwrap()
}

/// The only header of this name.
fn bytes(letter: &OwnedMessage, name: &str) -> Option<Vec<u8>> {
    let mut named = letter.headers()?.iter().filter(|header| header.key == name);
    let value = named.next()?.value?.to_vec();
    assert!(named.next().is_none(), "{name} is there twice");
    Some(value)
}

fn payloads(letters: &[OwnedMessage]) -> Vec<Option<&str>> {
    letters.iter().map(|l| l.payload().map(|p| std::str::from_utf8(p).unwrap())).collect()
}
