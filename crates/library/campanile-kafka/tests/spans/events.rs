//! The fields of the events about a record.

use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{DeadLetter, ProcessingOrder, RetryTopics};
use campanile_test::{Message, MockKafka};
use tower::service_fn;

use crate::CapturedLog;
use crate::support::{consumer, serve, until, until_committed};

fn kafka(payload: &str, topics: &[&str]) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    topics.iter().for_each(|topic| kafka.create_topic(topic, 1).unwrap());
    let message = Message::to("orders").partition(0).key("k".repeat(1000)).payload(payload);
    kafka.producer().produce(message).unwrap();
    kafka
}

fn contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn events_trace_a_record_from_retry_topics_to_dead_letter() {
    let (log, _guard) = CapturedLog::start();
    let kafka = kafka("p", &["orders.soon", "orders.later", "orders.dead"]);
    let config = kafka.consumer_config("g");
    let retries = RetryTopics::new()
        .then("orders.soon", Duration::from_millis(10))
        .then("orders.later", Duration::from_millis(20));
    let service = service_fn(async |record: Record| match record.topic() {
        "orders" => Err::<(), _>(BoxError::from("busy")),
        "orders.soon" => panic!("injected panic"),
        _ => Err(error::permanent("card expired").into()),
    });
    let consumer = consumer(config.clone(), "orders")
        .with_retry_topics(retries)
        .on_give_up(DeadLetter::topic("orders.dead"));
    let serving = serve(consumer, service);
    until_committed(&config, "orders.later", &[1]).await;
    serving.stop().await.unwrap();
    let retried = log.lines("WARN", "attempt failed; retrying");
    let [first, second] = &retried[..] else { panic!("{}", log.text()) };
    contains(first, &["record=orders/0@0", "busy", "after=10ms", r#"retry_topic="orders.soon""#]);
    assert!(!first.contains("origin"), "{first}");
    contains(second, &["record=orders.soon/0@0", "origin=orders/0@0", "panicked: injected panic"]);
    contains(second, &["after=20ms", r#"retry_topic="orders.later""#]);
    let letters = log.lines("WARN", "dead-lettered");
    contains(&letters[0], &["record=orders.later/0@0", "origin=orders/0@0", "truncated=false"]);
}

/// Serves until the condition is met, with this size limit for dead letters.
async fn give_up(log: &CapturedLog, room: &str, until_this: impl Fn() -> bool) {
    let kafka = kafka(&"p".repeat(5000), &["orders.dead"]);
    let letters_to = DeadLetter::topic("orders.dead").set("message.max.bytes", room);
    let service =
        service_fn(async |_: Record| Err::<(), _>(BoxError::from(error::permanent("no"))));
    let consumer = consumer(kafka.consumer_config("g"), "orders").on_give_up(letters_to);
    let serving = serve(consumer, service);
    until("the event is logged", until_this).await;
    serving.stop().await.unwrap();
    assert!(!log.text().contains("ppp"), "{}", log.text());
}

#[tokio::test(flavor = "current_thread")]
async fn letter_without_payload_is_logged_as_truncated() {
    let (log, _guard) = CapturedLog::start();
    give_up(&log, "5000", || !log.lines("WARN", "dead-lettered").is_empty()).await;
    contains(&log.lines("WARN", "dead-lettered")[0], &["truncated=true"]);
}

#[tokio::test(flavor = "current_thread")]
async fn unpublishable_letter_is_logged_once_as_an_error() {
    let (log, _guard) = CapturedLog::start();
    give_up(&log, "1000", || {
        log.lines("WARN", "failed to publish the dead letter again").len() >= 2
    })
    .await;
    let logged = log.lines("ERROR", "failed to publish the dead letter");
    assert_eq!(logged.len(), 1, "{logged:?}");
    contains(&logged[0], &["orders/0@0", "without its payload", "`max.message.bytes`"]);
    assert!(!logged[0].contains("create the topic"), "{}", logged[0]);
}

#[tokio::test(flavor = "current_thread")]
async fn panicking_order_extractor_is_logged_and_records_processed() {
    let (log, _guard) = CapturedLog::start();
    let kafka = kafka("p", &[]);
    let config = kafka.consumer_config("g");
    let panics = |_: &Record| -> Option<String> { panic!("injected panic") };
    let consumer = consumer(config.clone(), "orders").with_order(ProcessingOrder::by(panics));
    let serving = serve(consumer, service_fn(async |_: Record| Ok::<_, BoxError>(())));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
    let logged = log.lines("ERROR", "extractor");
    assert_eq!(logged.len(), 1, "{}", log.text());
    contains(&logged[0], &["record=orders/0@0", "injected panic"]);
}
