//! Outputs that the brokers refuse.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, ConsumerError, Output, Outputs, Transactions, consumer::Serve};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::oneshot;

use crate::{KAFKA, TIMEOUT, Topics, group, invoices};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_to_missing_topic_stops_consumer_and_names_both() {
    let topics = tokio::task::spawn_blocking(|| {
        let topics = Topics::create();
        KAFKA.producer().produce(topics.payment(0, 7)).unwrap();
        topics
    });
    let payments = topics.await.unwrap().payments;
    let transactions = Transactions::new("refused");
    let service = tower::service_fn(|record: Record| async move {
        Ok::<_, BoxError>(Outputs::of(&record).with(Output::to("no-such-topic")))
    });
    let config = KAFKA.consumer_config("refused");
    let serving = Consumer::new(config).unwrap().subscribe([payments.clone()]);
    let serving = serving.serve_transactional(service, transactions).into_future();
    let result = tokio::time::timeout(TIMEOUT, serving).await.expect("serving ends");
    match result.unwrap_err() {
        ConsumerError::Stopped { at, source } => {
            assert_eq!(at.to_string(), format!("{payments}/0@0"));
            assert!(format!("{source:?}").contains("no-such-topic"), "{source:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Creates an output topic with these settings, and ten payments.
async fn with_payments(config: &'static [(&'static str, &'static str)]) -> Topics {
    let create = || {
        let mut topics = Topics::create();
        topics.invoices = format!("{}-of-its-own", topics.invoices);
        KAFKA.create_topic(&topics.invoices, 1, config).unwrap();
        KAFKA.producer().produce_all((0..10).map(|id| topics.payment(0, id))).unwrap();
        topics
    };
    tokio::task::spawn_blocking(create).await.unwrap()
}

/// Serves with an output for each record, in a single transaction.
fn serve(
    topics: &Topics,
    output: impl Fn(&Record, Output) -> Output + Clone + Send + 'static,
) -> Serve {
    let to = topics.invoices.clone();
    let service = tower::service_fn(move |record: Record| {
        let output = output(&record, Output::to(to.clone()));
        async move { Ok::<_, BoxError>(Outputs::of(&record).with(output)) }
    });
    let transactions = Transactions::new(&topics.payments).with_interval(Duration::from_secs(1));
    let consumer = Consumer::new(KAFKA.consumer_config(&topics.payments)).unwrap();
    consumer.subscribe([topics.payments.clone()]).serve_transactional(service, transactions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_refused_together_are_sent_one_by_one() {
    // Two of the outputs together are too large.
    let topics = with_payments(&[("max.message.bytes", "5000")]).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let output = |record: &Record, output: Output| {
        output.key(record.offset().to_string()).payload(vec![b'x'; 3_000])
    };
    let serve = serve(&topics, output)
        .with_graceful_shutdown(async move { stopped.await.unwrap_or_default() });
    let serving = tokio::spawn(serve.into_future());
    let wait = move || {
        let config = KAFKA.consumer_config(&topics.payments);
        // All records are in the first partition.
        group::wait_until_committed(&config, &topics.payments, 1, TIMEOUT);
        invoices::messages(&KAFKA, &topics.invoices, 1, "read_committed")
    };
    let sent = tokio::task::spawn_blocking(wait).await.unwrap();
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let keys: Vec<_> = sent.iter().map(|output| output.key().unwrap_or_default()).collect();
    let expected: Vec<_> = (0..10).map(|offset| offset.to_string()).collect();
    assert_eq!(keys, expected.iter().map(String::as_bytes).collect::<Vec<_>>());
    assert!(
        sent.iter().all(|output| output.payload().is_some_and(|payload| payload.len() == 3_000))
    );
}

/// Reads the committed offset of the group's first partition, which is 0 if there is none.
fn committed(topic: &str) -> i64 {
    let consumer: BaseConsumer = KAFKA.consumer_config(topic).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, 0);
    let committed = consumer.committed_offsets(list, TIMEOUT).unwrap();
    match committed.find_partition(topic, 0).unwrap().offset() {
        Offset::Offset(offset) => offset,
        _ => 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_refused_on_its_own_is_named() {
    let large = with_payments(&[("max.message.bytes", "5000")]).await;
    let serve_large = serve(&large, |record, output| {
        output.payload(vec![b'x'; if record.offset() == 5 { 6_000 } else { 10 }])
    });
    let compacted = with_payments(&[("cleanup.policy", "compact")]).await;
    let serve_compacted = serve(&compacted, |record, output| match record.offset() {
        5 => output,
        _ => output.key("a"),
    });
    for (topics, serve) in [(large, serve_large), (compacted, serve_compacted)] {
        let result =
            tokio::time::timeout(TIMEOUT, serve.into_future()).await.expect("serving ends");
        match result.unwrap_err() {
            ConsumerError::Stopped { at, source } => {
                assert_eq!(at.to_string(), format!("{}/0@5", topics.payments));
                assert!(format!("{source:?}").contains(&topics.invoices), "{source:?}");
            }
            other => panic!("{other:?}"),
        }
        let read = move || {
            let sent = invoices::messages(&KAFKA, &topics.invoices, 1, "read_committed");
            (committed(&topics.payments), sent.len() as i64)
        };
        // The records before the refused one may have been committed, with an output of each.
        let (committed, sent) = tokio::task::spawn_blocking(read).await.unwrap();
        assert!(committed <= 5, "{committed}");
        assert_eq!(sent, committed);
    }
}
