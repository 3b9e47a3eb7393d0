//! A message read by another consumer converts to the same record that the driver creates.

use campanile_core::{BoxError, Record};
use campanile_kafka::ToRecord;
use campanile_test::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{ClientConfig, message::OwnedMessage};
use tokio::sync::mpsc;
use tower::service_fn;

use crate::records::produce_header;
use crate::support::{TIMEOUT, consumer, mock, serve, within};

/// Formats all parts of a record.
fn formatted(record: &Record) -> String {
    format!(
        "{} {:?} {:?} {:?} {:?}",
        record.coordinates(),
        record.timestamp(),
        record.key(),
        record.payload(),
        record.headers()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn converted_message_equals_the_record_of_the_driver() {
    let kafka = mock("orders", 1, 0);
    let to = || Message::to("orders").partition(0);
    kafka
        .producer()
        .produce_all([
            to(),
            to().key("").payload(""),
            to().key("k").payload("p").header("a", "1").header("", "").null_header("a"),
        ])
        .unwrap();
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap();
    produce_header(&producer, b"caf\xe9", b"latin").unwrap();
    producer.flush(TIMEOUT).unwrap();

    let (sender, mut receiver) = mpsc::unbounded_channel();
    let service = service_fn(move |record: Record| {
        let _ = sender.send(record);
        async { Ok::<_, BoxError>(()) }
    });
    let serving = serve(consumer(kafka.consumer_config("driver"), "orders"), service);
    let mut driven = Vec::new();
    for _ in 0..4 {
        driven.push(formatted(&within("a record is handled", receiver.recv()).await.unwrap()));
    }
    serving.stop().await.unwrap();

    let own: BaseConsumer = kafka.consumer_config("own").create().unwrap();
    own.subscribe(&["orders"]).unwrap();
    for expected in &driven {
        // A poll also returns for events other than messages, such as a rebalance.
        let message = (0..10).find_map(|_| own.poll(TIMEOUT)).expect("a message").unwrap();
        assert_eq!(formatted(&message.to_record()), *expected);
        let owned: OwnedMessage = message.detach();
        drop(message);
        assert_eq!(formatted(&owned.to_record()), *expected);
    }
    assert!(driven[3].contains("caf\u{fffd}"), "{}", driven[3]);
}
