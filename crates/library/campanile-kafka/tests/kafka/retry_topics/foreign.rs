//! Two groups that share retry topics by mistake.

use campanile_core::Record;
use campanile_kafka::{Consumer, ConsumerError};
use campanile_test::{Message, MockKafka};
use tower::service_fn;

use super::{Calls, SOON, busy, failing, kafka, retry_topics};
use crate::support::{committed, serve, until_committed};

/// Starts a cluster in which the consumer of another topic has published a copy of its record 0 to
/// `SOON`.
async fn with_a_copy_of_another_group() -> MockKafka {
    let kafka = kafka(&["0"]);
    kafka.create_topic("bank", 1).unwrap();
    kafka.producer().produce(Message::to("bank").partition(0).payload("0")).unwrap();
    let config = kafka.consumer_config("another");
    let other = Consumer::new(config.clone()).unwrap().subscribe(["bank"]);
    let fails = service_fn(
        async |record: Record| if record.topic() == "bank" { Err(busy()) } else { Ok(()) },
    );
    let serving = serve(other.with_retry_topics(retry_topics()), fails);
    until_committed(&config, SOON, &[1]).await;
    serving.stop().await.unwrap();
    kafka
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_of_an_unsubscribed_topic_stops_the_consumer() {
    let kafka = with_a_copy_of_another_group().await;
    let config = kafka.consumer_config("g");
    for topic in ["orders", "^orders$"] {
        let calls = Calls::default();
        let consumer = Consumer::new(config.clone()).unwrap().subscribe([topic]);
        let serving = serve(consumer.with_retry_topics(retry_topics()), failing(&calls, busy));
        let error = serving.ended().await.unwrap_err();
        let ConsumerError::Stopped { at, .. } = &error else { panic!("{error:?}") };
        assert_eq!(at.to_string(), "orders.soon/0@0");
        let text = format!("{error:?}");
        assert!(text.contains("copy of bank/0@0") && text.contains("of its own"), "{text}");
        assert!(
            calls.topics_and_offsets().iter().all(|(topic, _)| topic == "orders"),
            "{:?}",
            calls.topics_and_offsets()
        );
        assert_eq!(committed(&config, SOON, 1), [None]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_of_an_unsubscribed_topic_passes_by_its_coordinates() {
    let kafka = with_a_copy_of_another_group().await;
    let config = kafka.consumer_config("g");
    let consumer = Consumer::new(config.clone()).unwrap().subscribe(["orders"]);
    let consumer = consumer.skip_at("orders.soon/0@0".parse().unwrap());
    let calls = Calls::default();
    let serving = serve(consumer.with_retry_topics(retry_topics()), failing(&calls, busy));
    until_committed(&config, SOON, &[1]).await;
    assert_eq!(serving.stop().await.unwrap().skipped, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_all_subscribed_topics_are_processed() {
    let kafka = with_a_copy_of_another_group().await;
    let config = kafka.consumer_config("g");
    // One topic by its name, the other by a pattern.
    let consumer = Consumer::new(config.clone()).unwrap().subscribe(["bank", "^orders$"]);
    let calls = Calls::default();
    kafka.producer().produce(Message::to("orders").partition(0).payload("1")).unwrap();
    let serving = serve(consumer.with_retry_topics(retry_topics()), failing(&calls, busy));
    until_committed(&config, SOON, &[2]).await;
    serving.stop().await.unwrap();
    let copies = calls.topics_and_offsets().into_iter().filter(|(topic, _)| topic == SOON);
    assert_eq!(copies.map(|(_, offset)| offset).collect::<Vec<_>>(), [0, 1]);
}
