//! Single records that are skipped by their coordinates.

use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerError, Output, Outputs, RetryTopics, Transactions};
use campanile_test::{Message, MockKafka};
use tower::service_fn;

use crate::dead_letter::letters_in;
use crate::give_up::{FAILS, GOOD, LAST, Outcomes, kafka, keeper, service};
use crate::support::{Log, committed, consumer, mock, serve, start, until, until_committed};

fn skipping(consumer: Consumer, coordinates: &[&str]) -> Consumer {
    coordinates.iter().fold(consumer, |consumer, at| consumer.skip_at(at.parse().unwrap()))
}

fn stopped_at(error: ConsumerError) -> String {
    let ConsumerError::Stopped { at, .. } = error else { panic!("{error:?}") };
    at.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_at_passes_records_that_stop_the_consumer() {
    let kafka = kafka(&[GOOD, "no json", FAILS, FAILS, LAST]);
    let config = kafka.consumer_config("g");
    let (keeper, outcomes) = (keeper(), Outcomes::default());
    // An undecodable record, one without attempts left, and then another one of the same key: its
    // entry was not changed.
    let mut skipped = Vec::new();
    for bad in ["orders/0@1", "orders/0@2", "orders/0@3"] {
        let consumer = skipping(consumer(config.clone(), "orders"), &skipped);
        let serving = serve(consumer, service(&keeper, 1, &outcomes));
        assert_eq!(stopped_at(serving.ended().await.unwrap_err()), bad);
        skipped.push(bad);
    }
    assert_eq!(committed(&config, "orders", 1), [Some(3)]);
    let consumer = skipping(consumer(config.clone(), "orders"), &skipped);
    let serving = serve(consumer, service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[5]).await;
    let summary = serving.stop().await.unwrap();
    // Only the last one had not passed before.
    assert_eq!((summary.skipped, summary.processed), (1, 1));
    assert_eq!(*outcomes.lock().unwrap(), [(0, "processed"), (4, "processed")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_at_calls_the_service_for_all_other_records() {
    let kafka = mock("orders", 2, 3);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let called = log.clone();
    let service = service_fn(move |record: Record| {
        called.push(&record);
        async { Ok::<_, BoxError>(()) }
    });
    let others = ["orders/1@7", "other/0@0"];
    let consumer = skipping(consumer(config.clone(), "orders"), &["orders/0@0", "orders/0@2"]);
    let serving = serve(skipping(consumer, &others), service);
    until_committed(&config, "orders", &[3, 3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((log.of(0), log.of(1)), (vec![1], vec![0, 1, 2]));
    assert_eq!((summary.received, summary.skipped, summary.processed), (6, 2, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_at_passes_a_copy_in_a_retry_topic() {
    let kafka = kafka(&["p"]);
    kafka.create_topic("orders.soon", 1).unwrap();
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let called = log.clone();
    let service = service_fn(move |record: Record| {
        called.push(&record);
        async { Err::<(), _>(BoxError::from("busy")) }
    });
    // The copy is skipped when it is received, even though it is not due.
    let topics = RetryTopics::new().then("orders.soon", Duration::from_secs(3600));
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving = serve(skipping(consumer, &["orders.soon/0@0"]), service);
    until_committed(&config, "orders.soon", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.deferred, summary.skipped, log.len()), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_at_passes_a_record_with_refused_outputs() {
    let kafka = MockKafka::start(1).unwrap();
    for topic in ["payments", "invoices"] {
        kafka.create_topic(topic, 1).unwrap();
    }
    let message = |n: usize| Message::to("payments").partition(0).payload(format!("{n}"));
    kafka.producer().produce_all((0..4).map(message)).unwrap();
    let config = kafka.consumer_config("g");
    let serve = |skipped: &[&str]| {
        let service = service_fn(|record: Record| async move {
            let size = if record.offset() == 2 { 5_000 } else { 5 };
            let output = Output::to("invoices").payload(vec![b'x'; size]);
            Ok::<_, BoxError>(Outputs::of(&record).with(output))
        });
        let transactions = Transactions::new("billing").with_interval(Duration::from_millis(10));
        let small = transactions.set("message.max.bytes", "2000");
        let consumer = skipping(consumer(config.clone(), "payments"), skipped);
        start(consumer.serve_transactional(service, small))
    };
    assert_eq!(stopped_at(serve(&[]).ended().await.unwrap_err()), "payments/0@2");
    let before = letters_in(&config, "invoices").len();
    let serving = serve(&["payments/0@2"]);
    // The mock cluster keeps no offsets of transactions, so records 0, 1 and 3 are billed.
    let sent = || letters_in(&config, "invoices").len() - before;
    until("the other records are billed", || sent() >= 3).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.skipped, summary.processed, sent()), (1, 3, 3));
}
