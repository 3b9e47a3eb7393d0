//! Topics that cannot hold dead letters are refused when serving begins.

use std::error::Error;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerError, DeadLetter};
use tower::service_fn;

use super::{DEAD, kafka, set_unknown};
use crate::give_up::GOOD;
use crate::support::{committed, consumer, serve};

async fn ignore(_: Record) -> Result<(), BoxError> {
    Ok(())
}

async fn refused(consumer: Consumer) -> ConsumerError {
    serve(consumer, service_fn(ignore)).ended().await.unwrap_err()
}

fn text(error: &ConsumerError) -> String {
    format!("{error:?}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_topic_that_is_consumed_is_refused() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let of = |topics: &[&str], letters_to: DeadLetter| {
        let consumer = Consumer::new(config.clone()).unwrap();
        consumer.subscribe(topics.iter().copied()).on_give_up(letters_to)
    };
    for consumer in [
        of(&["orders"], DeadLetter::topic("orders")),
        of(&["orders", DEAD], DeadLetter::topic(DEAD)),
        of(&["orders", DEAD], DeadLetter::by_topic(|topic| format!("{topic}.dead"))),
        // Detected when the topics that match the pattern are assigned.
        of(&["^orders.*"], DeadLetter::topic(DEAD)),
        of(&["^orders.*"], DeadLetter::by_topic(|topic| format!("{topic}.dead"))),
    ] {
        let error = refused(consumer).await;
        assert!(matches!(error, ConsumerError::Config(_)), "{error:?}");
        assert!(text(&error).contains("orders"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_dead_letter_topic_is_named_at_startup() {
    let kafka = kafka(&[GOOD]);
    set_unknown(&kafka, DEAD, true);
    let config = kafka.consumer_config("g");
    let error = refused(consumer(config.clone(), "orders").on_give_up(DeadLetter::topic(DEAD)));
    let error = error.await;
    assert!(matches!(error, ConsumerError::Kafka { .. }), "{error:?}");
    assert!(text(&error).contains("dead-letter topic `orders.dead` does not exist"), "{error:?}");
    assert!(text(&error).contains("create it"), "{error:?}");
    assert_eq!(committed(&config, "orders", 1), [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_producer_settings_are_refused() {
    let kafka = kafka(&[GOOD]);
    for (name, value) in [
        ("acks", "1"),
        ("transactional.id", "t"),
        ("no.such.setting", "1"),
        ("bootstrap.servers", "127.0.0.1:1"),
    ] {
        let letters_to = DeadLetter::topic(DEAD).set(name, value);
        let consumer = consumer(kafka.consumer_config("g"), "orders").on_give_up(letters_to);
        let error = refused(consumer).await;
        assert!(matches!(error, ConsumerError::Config(_)), "{error:?}");
        assert!(error.source().unwrap().to_string().contains(name), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_or_invalid_topic_choice_is_reported() {
    let kafka = kafka(&[GOOD]);
    for (letters_to, why) in [
        (DeadLetter::by_topic(|_| panic!("injected panic")), "injected panic"),
        (DeadLetter::by_topic(|topic| format!("dead letters of {topic}")), "valid topic name"),
    ] {
        let consumer = consumer(kafka.consumer_config("g"), "orders").on_give_up(letters_to);
        let error = refused(consumer).await;
        assert!(matches!(error, ConsumerError::Config(_)), "{error:?}");
        assert!(text(&error).contains(why), "{error:?}");
    }
}
