//! The mock cluster behaves as the test kit documents it.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use campanile_test::{Delivered, Message, MockKafka, eventually};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

fn consumer(kafka: &MockKafka, group: &str) -> BaseConsumer {
    let consumer: BaseConsumer = kafka.consumer_config(group).create().unwrap();
    consumer.subscribe(&["orders"]).unwrap();
    consumer
}

fn start_with_topic(partitions: i32) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", partitions).unwrap();
    kafka
}

/// Receives the next message. A poll also ends when it has served a rebalance.
fn next(consumer: &BaseConsumer) -> BorrowedMessage<'_> {
    eventually(TIMEOUT, || consumer.poll(Duration::from_millis(100))).expect("a message").unwrap()
}

#[test]
fn message_arrives_as_produced() {
    let kafka = start_with_topic(3);
    let message = Message::to("orders")
        .partition(2)
        .key([0xff, 0x00])
        .payload("an order")
        .header("trace", "t-1")
        .header("trace", "t-2")
        .null_header("empty");
    let delivered = kafka.producer().produce(message).unwrap();
    assert_eq!(delivered, Delivered { partition: 2, offset: 0 });

    let consumer = consumer(&kafka, "billing");
    let received = next(&consumer);
    assert_eq!((received.partition(), received.offset()), (2, 0));
    assert_eq!(received.key(), Some(&[0xff, 0x00][..]));
    assert_eq!(received.payload(), Some(&b"an order"[..]));
    let headers: Vec<_> =
        received.headers().unwrap().iter().map(|header| (header.key, header.value)).collect();
    let expected = [("trace", Some(&b"t-1"[..])), ("trace", Some(&b"t-2"[..])), ("empty", None)];
    assert_eq!(headers, expected);
}

#[test]
fn missing_key_and_payload_are_null_not_empty() {
    let kafka = start_with_topic(1);
    let producer = kafka.producer();
    producer.produce(Message::to("orders")).unwrap();
    producer.produce(Message::to("orders").key("").payload("")).unwrap();
    let consumer = consumer(&kafka, "billing");
    let received = next(&consumer);
    assert_eq!((received.key(), received.payload()), (None, None));
    let received = next(&consumer);
    assert_eq!((received.key(), received.payload()), (Some(&[][..]), Some(&[][..])));
}

#[test]
fn many_messages_keep_order() {
    let kafka = start_with_topic(2);
    let messages =
        (0..25_000).map(|n: i32| Message::to("orders").partition(n % 2).payload(n.to_string()));
    let delivered = kafka.producer().produce_all(messages).unwrap();
    let expected: Vec<_> =
        (0..25_000).map(|n| Delivered { partition: n % 2, offset: i64::from(n / 2) }).collect();
    assert_eq!(delivered, expected);
}

#[test]
fn first_assignment_skips_initial_rebalance_delay() {
    let kafka = start_with_topic(1);
    kafka.producer().produce(Message::to("orders").payload("1")).unwrap();
    let time_of_assignment = |number: u32| {
        #[expect(clippy::disallowed_methods, reason = "this test measures the time")]
        let start = Instant::now();
        let consumer = consumer(&kafka, &format!("billing-{number}"));
        next(&consumer);
        start.elapsed()
    };
    // A stalled machine delays some assignments, and the cluster's delay would be in each of them.
    let mut times = (0..5).map(time_of_assignment);
    assert!(times.any(|time| time < Duration::from_millis(2500)), "each assignment was delayed");
}

#[test]
fn group_resumes_at_committed_offset() {
    let kafka = start_with_topic(1);
    let messages = ["1", "2"].map(|payload| Message::to("orders").payload(payload));
    kafka.producer().produce_all(messages).unwrap();
    let first = consumer(&kafka, "billing");
    {
        let received = next(&first);
        first.commit_message(&received, CommitMode::Sync).unwrap();
    }
    drop(first);
    let second = consumer(&kafka, "billing");
    let received = next(&second);
    assert_eq!(received.payload(), Some(&b"2"[..]));
}

#[test]
fn joining_and_leaving_member_moves_partitions() {
    let kafka = start_with_topic(2);
    let first = consumer(&kafka, "billing");
    let count = |consumer: &BaseConsumer| consumer.assignment().unwrap().count();
    let poll = |consumer: &BaseConsumer| {
        if let Some(received) = consumer.poll(Duration::from_millis(10)) {
            received.unwrap();
        }
    };
    eventually(TIMEOUT, || {
        poll(&first);
        (count(&first) == 2).then_some(())
    })
    .expect("both partitions");
    let second = consumer(&kafka, "billing");
    eventually(TIMEOUT, || {
        poll(&first);
        poll(&second);
        (count(&first) == 1 && count(&second) == 1).then_some(())
    })
    .expect("one partition each");
    drop(second);
    // Also because librdkafka (2.12) may hang when a consumer is closed in the middle of a rebalance.
    eventually(TIMEOUT, || {
        poll(&first);
        (count(&first) == 2).then_some(())
    })
    .expect("both partitions again");
}

#[test]
fn faults_are_injected_through_the_cluster() {
    let kafka = start_with_topic(1);
    kafka.cluster().broker_down(-1).unwrap();
    let consumer: BaseConsumer = kafka.consumer_config("billing").create().unwrap();
    let fetch = || consumer.fetch_metadata(Some("orders"), Duration::from_millis(300));
    fetch().expect_err("the broker is down");
    kafka.cluster().broker_up(-1).unwrap();
    eventually(TIMEOUT, || fetch().ok()).expect("the broker is up again");
}

#[test]
fn servers_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<MockKafka>();
    shared::<campanile_test::Producer>();
    shared::<campanile_test::Proxy>();
    shared::<campanile_test::KafkaServer>();
    shared::<campanile_test::RedisServer>();
}
