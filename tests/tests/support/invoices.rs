//! The contents of an invoice topic.

use campanile::record::Coordinates;
use campanile_test::KafkaServer;
use campanile_test::history::TOPIC_HEADER;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::history::TestHistory;
use crate::{PARTITIONS, TIMEOUT};

/// An invoice, and the position of its record.
pub(crate) struct Invoice {
    pub(crate) id: String,
    /// The name of the record's topic in the history, if that was recreated.
    topic: Option<String>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// The fencing token of the handler, if it had a lock.
    pub(crate) token: Option<u64>,
    at: Coordinates,
}

/// Reads all invoices, in the order of each partition, with this isolation level.
pub(crate) fn read(kafka: &KafkaServer, topic: &str, isolation: &str) -> Vec<Invoice> {
    messages(kafka, topic, PARTITIONS, isolation).iter().map(Invoice::parse).collect()
}

/// Records these invoices, of records of this topic, and the commits of the group of that name.
pub(crate) fn record(
    history: &TestHistory,
    kafka: &KafkaServer,
    topic: &str,
    invoices: &[Invoice],
) {
    record_outputs(history, topic, invoices);
    history.recorder.record_commits(&kafka.consumer_config(topic), topic).unwrap();
}

/// Records these invoices, of records of this topic.
pub(crate) fn record_outputs(history: &TestHistory, topic: &str, invoices: &[Invoice]) {
    for Invoice { topic: recreated, partition, offset, at, .. } in invoices {
        let topic = recreated.as_deref().unwrap_or(topic).into();
        let record = Coordinates { topic, partition: *partition, offset: *offset };
        history.recorder.output(&record, at);
    }
}

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

impl Invoice {
    fn parse(message: &OwnedMessage) -> Self {
        let text = std::str::from_utf8(message.payload().unwrap()).unwrap();
        let (id, position) = text.split_once(' ').unwrap();
        let (partition, offset) = position.split_once('@').unwrap();
        let (partition, offset) = (partition.parse().unwrap(), offset.parse().unwrap());
        let at = Coordinates {
            topic: message.topic().into(),
            partition: message.partition(),
            offset: message.offset(),
        };
        let header = |name: &str| {
            let value = message.headers()?.iter().find(|header| header.key == name)?.value?;
            Some(std::str::from_utf8(value).unwrap().to_owned())
        };
        let token = header("token").and_then(|token| token.parse().ok());
        Self { id: id.to_owned(), topic: header(TOPIC_HEADER), partition, offset, token, at }
    }
}
