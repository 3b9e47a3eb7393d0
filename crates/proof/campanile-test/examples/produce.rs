//! Produces one record to a topic, for experiments:
//! `cargo run --package campanile-test --example produce -- TOPIC [PAYLOAD [HEADER=VALUE …]] [--key KEY]`.
//!
//! The broker is `CAMPANILE_BROKERS`, or 127.0.0.1:9092. A missing topic is created with three
//! partitions. Without a payload, the example does nothing else.

use campanile_test::{Message, Producer, create_topic};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::error::Error;

const USAGE: &str = "usage: produce TOPIC [PAYLOAD [HEADER=VALUE …]] [--key KEY]";

fn main() -> Result<(), Box<dyn Error>> {
    let broker = std::env::var("CAMPANILE_BROKERS").unwrap_or_else(|_| "127.0.0.1:9092".to_owned());
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let key = match args.iter().position(|arg| arg == "--key") {
        Some(at) if at + 1 < args.len() => args.drain(at..at + 2).nth(1),
        Some(_) => return Err(USAGE.into()),
        None => None,
    };
    let mut args = args.into_iter();
    // Kafka would accept an option as the name of a topic.
    let topic = args.next().filter(|topic| !topic.starts_with('-')).ok_or(USAGE)?;
    match create_topic(&broker, &topic, 3, &[]) {
        Ok(()) => println!("created topic {topic}"),
        Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) => {}
        Err(error) => return Err(format!("{broker}: {error}").into()),
    }
    let Some(payload) = args.next() else {
        return Ok(());
    };
    let mut message = Message::to(&*topic).payload(payload);
    if let Some(key) = key {
        message = message.key(key);
    }
    for header in args {
        let (name, value) = header.split_once('=').ok_or("headers have the form NAME=VALUE")?;
        message = message.header(name, value);
    }
    let delivered = Producer::new(&broker)?.produce(message)?;
    println!("{topic}/{}@{}", delivered.partition, delivered.offset);
    Ok(())
}
