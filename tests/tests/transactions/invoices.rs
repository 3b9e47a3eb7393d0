//! The contents of an invoice topic.

use std::collections::HashMap;

use campanile_test::KafkaServer;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::OwnedMessage;
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::{PARTITIONS, TIMEOUT};

/// An invoice, and the position of its record.
#[derive(Debug)]
pub(crate) struct Invoice {
    pub(crate) account: String,
    pub(crate) id: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

/// Reads all invoices, in the order of each partition, with this isolation level.
pub(crate) fn read(kafka: &KafkaServer, topic: &str, isolation: &str) -> Vec<Invoice> {
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    let parse =
        |message: OwnedMessage| Invoice::parse(text(message.key()), &text(message.payload()));
    messages(kafka, topic, PARTITIONS, isolation).into_iter().map(parse).collect()
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
    fn parse(account: String, text: &str) -> Self {
        let (id, position) = text.split_once(' ').unwrap();
        let (partition, offset) = position.split_once('@').unwrap();
        let (partition, offset) = (partition.parse().unwrap(), offset.parse().unwrap());
        Self { account, id: id.to_owned(), partition, offset }
    }
}

/// Finds the violations among the invoices. `unit_of` names the unit that must have exactly one
/// invoice.
pub(crate) fn violations(
    invoices: &[Invoice],
    expected: usize,
    unit_of: impl Fn(&Invoice) -> String,
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    for invoice in invoices {
        *counts.entry(unit_of(invoice)).or_default() += 1;
        // All records of an account are in one partition.
        let before = last.insert(&invoice.account, invoice.offset);
        if before.is_some_and(|before| before >= invoice.offset) {
            violations.push(format!("{invoice:?} comes after {before:?}"));
        }
    }
    violations
        .extend(counts.iter().filter(|(_, count)| **count > 1).map(|t| format!("twice: {t:?}")));
    if counts.len() != expected {
        violations.push(format!("{} of {expected}", counts.len()));
    }
    violations
}
