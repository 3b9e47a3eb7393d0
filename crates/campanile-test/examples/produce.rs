//! Sends one record, to play with:
//! `cargo run --package campanile-test --example produce -- TOPIC PAYLOAD [HEADER=VALUE …]`.
//!
//! The broker is `CAMPANILE_BROKER`, or 127.0.0.1:9092. A topic that is not there is created, with
//! three partitions.

use campanile_test::{Message, Producer, create_topic};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let broker = std::env::var("CAMPANILE_BROKER").unwrap_or_else(|_| "127.0.0.1:9092".to_owned());
    let mut args = std::env::args().skip(1);
    let (Some(topic), Some(payload)) = (args.next(), args.next()) else {
        return Err("usage: produce TOPIC PAYLOAD [HEADER=VALUE …]".into());
    };
    match create_topic(&broker, &topic, 3, &[]) {
        Ok(()) => println!("created the topic {topic}"),
        Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) => {}
        Err(error) => return Err(format!("{broker}: {error}").into()),
    }
    let mut message = Message::to(&*topic).payload(payload);
    for header in args {
        let (name, value) = header.split_once('=').ok_or("a header is NAME=VALUE")?;
        message = message.header(name, value);
    }
    let delivered = Producer::new(&broker)?.produce(message)?;
    println!("{topic}/{}@{}", delivered.partition, delivered.offset);
    Ok(())
}
