//! A copy is the same event: it has the same key, the same attempt count and the same dead letter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, key};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore,
};
use campanile_kafka::{DeadLetter, RetryTopics};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, OwnedMessage};
use rdkafka::{ClientConfig, Message as _};
use tower::{Service, ServiceBuilder, service_fn};

use super::{HOUR, LATER, SOON, kafka, retrying};
use crate::support::{TIMEOUT, committed, consumer, serve, until_committed};

/// The calls of the handler: topic, attempt and key.
type Attempts = Arc<Mutex<Vec<(String, u32, String)>>>;

/// The answers of the layer: topic, and whether the record was a duplicate.
type Answers = Arc<Mutex<Vec<(String, bool)>>>;

/// A service that fails as often as the payload says, with the record's coordinates as the key.
fn service(
    keeper: &LockKeeper,
    max_attempts: u32,
    attempts: &Attempts,
    answers: &Answers,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    let layer = IdempotencyLayer::new(
        keeper,
        IdempotencyConfig::new("orders").with_max_attempts(max_attempts).with_backoff(backoff),
        key::coordinates(),
    )
    .unwrap();
    let attempts = attempts.clone();
    let handler = service_fn(move |request: Request<bytes::Bytes>| {
        let lock = request.lock().unwrap();
        let (topic, key) = (request.record().topic().to_owned(), lock.key().to_string());
        attempts.lock().unwrap().push((topic, lock.attempt(), key));
        let fails: u32 = std::str::from_utf8(request.body()).unwrap().parse().unwrap();
        let result = if lock.attempt() <= fails { Err(BoxError::from("busy")) } else { Ok(()) };
        async { result }
    });
    let mut inner = ServiceBuilder::new().layer(DecodeLayer::bytes()).layer(layer).service(handler);
    let answers = answers.clone();
    service_fn(move |record: Record| {
        let (call, answers) = (inner.call(record.clone()), answers.clone());
        async move {
            let answer: Outcome<()> = call.await?;
            answers.lock().unwrap().push((record.topic().to_owned(), answer.is_duplicate()));
            Ok(())
        }
    })
}

fn keeper() -> LockKeeper {
    LockKeeper::new(MemoryStore::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_keeps_its_coordinates_key_and_attempts() {
    let kafka = kafka(&["0", "3"]);
    let config = kafka.consumer_config("g");
    let (attempts, answers) = (Attempts::default(), Answers::default());
    let serving = serve(retrying(config.clone()), service(&keeper(), 8, &attempts, &answers));
    until_committed(&config, LATER, &[2]).await;
    let summary = serving.stop().await.unwrap();
    let attempts = attempts.lock().unwrap();
    let key = attempts[1].2.clone();
    assert!(key.starts_with("orders/0@1#"), "{key}");
    let expected = [("orders", 1), (SOON, 2), (LATER, 3), (LATER, 4)];
    let expected = expected.map(|(topic, attempt)| (topic.to_owned(), attempt, key.clone()));
    assert_eq!(attempts[1..], expected);
    assert_eq!((summary.deferred, summary.processed, summary.inconclusive), (3, 2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_between_copy_and_commit_makes_a_duplicate() {
    let kafka = kafka(&["1"]);
    let keeper = keeper();
    let (attempts, answers) = (Attempts::default(), Answers::default());
    let config = kafka.consumer_config("g");
    // The copy does not become due before the crash.
    let topics = RetryTopics::new().then(SOON, HOUR);
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving = serve(consumer, service(&keeper, 8, &attempts, &answers));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();

    // A group without commits sees the copy as well as the record.
    answers.lock().unwrap().clear();
    attempts.lock().unwrap().clear();
    let config = kafka.consumer_config("after-the-crash");
    let serving = serve(retrying(config.clone()), service(&keeper, 8, &attempts, &answers));
    until_committed(&config, "orders", &[1]).await;
    until_committed(&config, SOON, &[1]).await;
    serving.stop().await.unwrap();
    let mut duplicates: Vec<_> = answers.lock().unwrap().iter().map(|(_, is)| *is).collect();
    duplicates.sort_unstable();
    assert_eq!(duplicates, [false, true]);
    assert_eq!(attempts.lock().unwrap().len(), 1, "one run for both");
    assert_eq!(committed(&config, LATER, 1), [None]);
}

/// Reads the only message of this topic.
fn only(config: &ClientConfig, topic: &str) -> OwnedMessage {
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(topic, 0, rdkafka::Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (_, end) = consumer.fetch_watermarks(topic, 0, TIMEOUT).unwrap();
    assert_eq!(end, 1);
    consumer.poll(TIMEOUT).expect("a message within the time limit").unwrap().detach()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_from_a_retry_topic_has_the_original_position() {
    let kafka = kafka(&["0", "1000"]);
    kafka.create_topic("orders.dead", 1).unwrap();
    let config = kafka.consumer_config("g");
    let (attempts, answers) = (Attempts::default(), Answers::default());
    let consumer =
        retrying(config.clone()).on_give_up(DeadLetter::by_topic(|topic| format!("{topic}.dead")));
    let serving = serve(consumer, service(&keeper(), 3, &attempts, &answers));
    until_committed(&config, LATER, &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(attempts.lock().unwrap().len(), 4);
    let (ended, received) = (summary.processed + summary.dead_lettered, summary.received);
    assert_eq!((ended, summary.deferred, received), (2, 2, 4));
    let letter = only(&config, "orders.dead");
    let headers = letter.headers().unwrap();
    let value = |name: &str| headers.iter().find(|h| h.key == name).unwrap().value.unwrap();
    assert_eq!(value("kafka_dlt-original-topic"), b"orders");
    assert_eq!(value("kafka_dlt-original-partition"), [0; 4]);
    assert_eq!(value("kafka_dlt-original-offset"), 1_i64.to_be_bytes());
    assert_eq!(value("campanile-attempts"), b"3");
    assert!(headers.iter().all(|header| !header.key.starts_with("campanile-origin")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_topic_choice_sees_only_original_topics() {
    let kafka = kafka(&["0", "1000"]);
    kafka.create_topic("orders.dead", 1).unwrap();
    let config = kafka.consumer_config("g");
    let (attempts, answers) = (Attempts::default(), Answers::default());
    let choose = |topic: &str| match topic {
        "orders" => "orders.dead".to_owned(),
        other => panic!("asked for {other}"),
    };
    let consumer = retrying(config.clone()).on_give_up(DeadLetter::by_topic(choose));
    let serving = serve(consumer, service(&keeper(), 2, &attempts, &answers));
    until_committed(&config, SOON, &[1]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
}
