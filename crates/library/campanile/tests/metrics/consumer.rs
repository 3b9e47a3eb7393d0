//! The metrics of the consumer and of its producers, on mock clusters. Its threads use the program's
//! recorder, so the tests share one and differ in their groups.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use campanile::consumer::{ConsumerStage, Serve, Summary};
use campanile::dead_letter::FloodLimit;
use campanile::error::{permanent, unavailable};
use campanile::publish::PublisherConfig;
use campanile::{
    Backoff, BoxError, Consumer, DeadLetter, DecodeLayer, Handle, IdempotencyConfig,
    IdempotencyLayer, LockKeeper, MemoryStore, OnGiveUp, Output, Outputs, Publisher, Record,
    Request, RetryTopics, Transactions, key,
};
use campanile_test::faults::{Fault, FaultyStore};
use campanile_test::{Message, MockKafka};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::scrape::{Scrape, TIMEOUT, recorder};
use crate::table::assert_defined;

const GROUP: &str = "messaging_consumer_group_name";
const TOPIC: &str = "messaging_destination_name";
const OUTCOME: &str = "campanile_record_outcome";

/// The program's recorder.
fn scrape() -> Scrape {
    static SCRAPE: OnceLock<Scrape> = OnceLock::new();
    let install = || {
        let recorder = recorder();
        let scrape = Scrape(recorder.handle());
        metrics::set_global_recorder(recorder).unwrap();
        scrape
    };
    SCRAPE.get_or_init(install).clone()
}

#[derive(serde::Deserialize)]
struct Order {
    id: String,
    does: Does,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Does {
    Succeed,
    FailOnce,
    FailForever,
    NeedProvider,
}

/// Creates a handler that does what the order says, under the layer.
fn service(
    keeper: &LockKeeper,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let millis = Duration::from_millis(1);
    let backoff = Backoff::new(millis, millis).unwrap();
    let config = IdempotencyConfig::new("orders").with_backoff(backoff);
    let layer = IdempotencyLayer::new(keeper, config, key::field(|order: &Order| &order.id));
    let handler = service_fn(async |request: Request<Order>| {
        let attempt = request.lock().unwrap().attempt();
        match request.body().does {
            Does::FailForever => Err(BoxError::from(permanent("card expired"))),
            Does::NeedProvider => Err(unavailable("connection refused").into()),
            Does::FailOnce if attempt == 1 => Err("busy".into()),
            Does::FailOnce | Does::Succeed => Ok(()),
        }
    });
    let stack = ServiceBuilder::new().layer(DecodeLayer::json()).layer(layer.unwrap());
    stack.service(handler).map_response(drop)
}

fn cluster(topics: &[&str]) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    topics.iter().for_each(|topic| kafka.create_topic(topic, 1).unwrap());
    kafka
}

fn produce(kafka: &MockKafka, topic: &str, payload: &str) {
    kafka.producer().produce(Message::to(topic).partition(0).payload(payload)).unwrap();
}

fn consumer(kafka: &MockKafka, group: &str, topic: &str) -> Consumer {
    scrape();
    let mut config = kafka.consumer_config(group);
    // A consumer that is only stalled keeps its partitions.
    config.set("session.timeout.ms", "20000");
    Consumer::new(config).unwrap().subscribe([topic])
}

type Served = Result<Summary, campanile::ConsumerError>;

fn start(serve: Serve) -> (Handle, JoinHandle<Served>) {
    let handle = serve.handle();
    (handle, tokio::spawn(serve.into_future()))
}

/// Waits until this many records are finished, and stops the consumer.
async fn stop_after(finished: u64, serving: (Handle, JoinHandle<Served>)) -> Summary {
    let (handle, served) = &serving;
    let done = |summary: Summary| {
        let Summary { processed, skipped, dead_lettered, deferred, .. } = summary;
        processed + skipped + dead_lettered + deferred
    };
    let are_finished = async {
        while done(handle.status().summary) < finished && !served.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, are_finished).await.expect("the records are finished");
    stop(serving).await
}

async fn stop((handle, served): (Handle, JoinHandle<Served>)) -> Summary {
    handle.shutdown();
    tokio::time::timeout(TIMEOUT, served).await.expect("serving ends").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_records_are_counted() {
    let kafka = cluster(&["orders", "dead"]);
    for payload in [
        r#"{"id":"a","does":"succeed"}"#,
        r#"{"id":"a","does":"succeed"}"#,
        r#"{"id":"b","does":"fail_once"}"#,
        r#"{"id":"c","does":"fail_forever"}"#,
        "garbage",
        r#"{"id":"e","does":"succeed"}"#,
    ] {
        produce(&kafka, "orders", payload);
    }
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let consumer = consumer(&kafka, "finished", "orders")
        .on_give_up(DeadLetter::topic("dead"))
        .skip_at("orders/0@5".parse().unwrap());
    let summary = stop_after(6, start(consumer.serve(service(&keeper)))).await;
    assert_eq!((summary.received, summary.processed, summary.dead_lettered), (6, 3, 2));

    let scrape = scrape();
    let group = (GROUP, "finished");
    let partition = ("messaging_destination_partition_id", "0");
    let poll = ("messaging_operation_name", "poll");
    let labels = [group, (TOPIC, "orders"), partition, ("messaging_system", "kafka"), poll];
    scrape.assert("messaging_client_consumed_messages_total", &labels, 6.0);
    let records = "campanile_consumer_records_total";
    for (outcome, count) in [("processed", 3.0), ("skipped", 1.0), ("dead_lettered", 2.0)] {
        scrape.assert(records, &[group, (TOPIC, "orders"), (OUTCOME, outcome)], count);
    }
    for reason in ["decode", "attempt_failed"] {
        let labels = [group, ("error_type", reason)];
        scrape.assert("campanile_consumer_dead_letters_total", &labels, 1.0);
    }
    let retries = "campanile_consumer_retries_total";
    scrape.assert(retries, &[group, ("error_type", "attempt_failed")], 1.0);
    // Three that succeed, one that fails once, and two that are dead-lettered.
    let attempts = "messaging_process_duration_seconds_count";
    scrape.assert(attempts, &[group, ("messaging_operation_name", "process")], 6.0);
    scrape.assert(attempts, &[group, ("error_type", "attempt_failed")], 2.0);
    scrape.assert(attempts, &[group, ("error_type", "decode")], 1.0);
    let commit =
        [group, ("messaging_operation_name", "commit"), ("messaging_operation_type", "settle")];
    assert!(scrape.value("messaging_client_operation_duration_seconds_count", &commit) >= 1.0);
    let assigned = [group, ("campanile_rebalance_kind", "assigned")];
    scrape.assert("campanile_consumer_rebalances_total", &assigned, 1.0);
    assert_defined(&scrape);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_logs_are_counted() {
    let kafka = cluster(&["orders"]);
    produce(&kafka, "orders", r#"{"id":"a","does":"succeed"}"#);
    let mut offsets = TopicPartitionList::new();
    let mut element = offsets.add_partition("orders", 0);
    element.set_offset(Offset::Offset(1)).unwrap();
    element.set_metadata("topic-id=AAAAAAAAAAAAAAAAAAAAAQ");
    let other: BaseConsumer = kafka.consumer_config("recreated").create().unwrap();
    other.commit(&offsets, CommitMode::Sync).unwrap();
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let consumer = consumer(&kafka, "recreated", "orders");
    stop_after(1, start(consumer.serve(service(&keeper)))).await;
    let recreated = [(GROUP, "recreated"), ("campanile_log_change_kind", "recreated")];
    scrape().assert("campanile_consumer_log_changes_total", &recreated, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publications_are_counted() {
    let kafka = cluster(&["bills"]);
    let scrape = scrape();
    let sent = "messaging_client_sent_messages_total";
    let config = PublisherConfig::new(kafka.bootstrap()).set("message.max.bytes", "2000");
    let publisher = Publisher::new(config).unwrap();
    let send = [("messaging_operation_name", "send")];
    let before = scrape.value(sent, &send);
    publisher.clone().oneshot(Output::to("bills").payload("1")).await.unwrap();
    // Other tests count here, too.
    assert!(scrape.value(sent, &send) >= before + 1.0);
    publisher.oneshot(Output::to("bills").payload(vec![0; 3000])).await.unwrap_err();
    let too_large = [send[0], ("error_type", "too_large")];
    scrape.assert(sent, &too_large, 1.0);
    let durations = "messaging_client_operation_duration_seconds_count";
    scrape.assert(durations, &too_large, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_of_transactions_are_counted() {
    let kafka = cluster(&["orders", "bills"]);
    produce(&kafka, "orders", "1");
    let scrape = scrape();
    let sent = "messaging_client_sent_messages_total";
    let consumer = consumer(&kafka, "transactions", "orders");
    let bill = service_fn(async |record: Record| {
        Ok::<_, BoxError>(Outputs::of(&record).with(Output::to("bills").payload("1")))
    });
    let before = scrape.0.render().contains(sent).then(|| scrape.value(sent, &[]));
    let serve = consumer.serve_transactional(bill, Transactions::new("billing-0"));
    stop_after(1, start(serve)).await;
    assert!(scrape.value(sent, &[]) >= before.unwrap_or_default() + 1.0);
    let commits = [(GROUP, "transactions"), ("messaging_operation_name", "commit")];
    assert!(scrape.value("messaging_client_operation_duration_seconds_count", &commits) >= 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_follow_the_consumer() {
    let kafka = cluster(&["orders"]);
    (0..5).for_each(|number| produce(&kafka, "orders", &number.to_string()));
    let gate = Arc::new(Semaphore::new(0));
    let permits = gate.clone();
    let service = service_fn(move |_: Record| {
        let permits = permits.clone();
        async move {
            permits.acquire().await?.forget();
            Ok::<_, BoxError>(())
        }
    });
    let serving = start(consumer(&kafka, "gauges", "orders").serve(service));
    let (scrape, group) = (scrape(), (GROUP, "gauges"));
    let topic = [group, (TOPIC, "orders")];
    scrape.reaches("campanile_consumer_lag", &topic, 5.0).await;
    scrape.reaches("campanile_consumer_buffered_records", &[group], 5.0).await;
    assert!(scrape.value("campanile_consumer_buffered_size_bytes", &[group]) > 0.0);
    let state = |state| [group, ("campanile_partition_state", state)];
    scrape.reaches("campanile_consumer_partitions", &state("active"), 1.0).await;
    let oldest_age = || scrape.value("campanile_consumer_oldest_age_seconds", &topic);
    let ages = async {
        while oldest_age() < 0.5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, ages).await.expect("the oldest record ages");

    let handle = serving.0.clone();
    handle.pause();
    let by_handle = [group, ("campanile_pause_cause", "handle")];
    scrape.reaches("campanile_consumer_paused", &by_handle, 1.0).await;
    handle.resume();
    scrape.reaches("campanile_consumer_paused", &by_handle, 0.0).await;
    handle.pause_topic("orders");
    scrape.reaches("campanile_consumer_partitions", &state("paused"), 1.0).await;
    handle.resume_topic("orders");

    gate.add_permits(10);
    stop_after(5, serving).await;
    for gauge in ["lag", "buffered_records", "oldest_age_seconds", "partitions"] {
        scrape.assert(&format!("campanile_consumer_{gauge}"), &[group], 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_pause_and_unavailable_store_show() {
    let kafka = cluster(&["orders", "dead"]);
    produce(&kafka, "orders", r#"{"id":"a","does":"fail_forever"}"#);
    let store = FaultyStore::new(MemoryStore::new());
    store.inject_always(Fault::Refuse);
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let letters = DeadLetter::topic("dead").with_flood_limit(FloodLimit::new(0, 1));
    let consumer = consumer(&kafka, "flood", "orders").on_give_up(letters);
    let (handle, served) = start(consumer.serve(service(&keeper)));
    let (scrape, group) = (scrape(), (GROUP, "flood"));
    scrape.reaches("campanile_consumer_store_unavailable", &[group], 1.0).await;
    let retries = [group, ("error_type", "store_unavailable")];
    assert!(scrape.value("campanile_consumer_retries_total", &retries) >= 1.0);
    store.heal();
    let flood = [group, ("campanile_pause_cause", "flood_limit")];
    scrape.reaches("campanile_consumer_paused", &flood, 1.0).await;
    scrape.reaches("campanile_consumer_store_unavailable", &[group], 0.0).await;
    stop((handle.clone(), served)).await;
    scrape.assert("campanile_consumer_records_total", &[group, (OUTCOME, "unfinished")], 1.0);
    assert_eq!(handle.status().stage, ConsumerStage::Ended);
    scrape.assert("campanile_consumer_paused", &flood, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_consumer_reports_no_unavailable_store() {
    let kafka = cluster(&["orders"]);
    produce(&kafka, "orders", r#"{"id":"a","does":"succeed"}"#);
    let store = FaultyStore::new(MemoryStore::new());
    store.inject_always(Fault::Refuse);
    let keeper = LockKeeper::new(store).unwrap();
    let serving = start(consumer(&kafka, "unavailable", "orders").serve(service(&keeper)));
    let (scrape, group) = (scrape(), (GROUP, "unavailable"));
    scrape.reaches("campanile_consumer_store_unavailable", &[group], 1.0).await;
    stop(serving).await;
    scrape.assert("campanile_consumer_store_unavailable", &[group], 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_dependency_shows_until_the_end() {
    let kafka = cluster(&["orders"]);
    produce(&kafka, "orders", r#"{"id":"a","does":"need_provider"}"#);
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let serving = start(consumer(&kafka, "dependency", "orders").serve(service(&keeper)));
    let (scrape, group) = (scrape(), (GROUP, "dependency"));
    scrape.reaches("campanile_consumer_dependencies_unavailable", &[group], 1.0).await;
    let retries = [group, ("error_type", "dependency_unavailable")];
    assert!(scrape.value("campanile_consumer_retries_total", &retries) >= 1.0);
    let unavailable = serving.0.status().unavailable;
    let [it] = &unavailable[..] else { panic!("{unavailable:?}") };
    assert!(it.dependency.is_none() && it.error.contains("connection refused"), "{it:?}");
    assert_eq!(serving.0.health().ready, Ok(()));
    stop(serving).await;
    scrape.assert("campanile_consumer_dependencies_unavailable", &[group], 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_and_revoked_records_are_counted() {
    let kafka = cluster(&["orders", "orders.retry"]);
    produce(&kafka, "orders", "1");
    let fails_first = service_fn(async |record: Record| match record.topic() {
        "orders" => Err(BoxError::from("busy")),
        _ => Ok(()),
    });
    let topics = RetryTopics::new().then("orders.retry", Duration::from_millis(1));
    let consumer_of = consumer(&kafka, "deferred", "orders").with_retry_topics(topics);
    stop_after(2, start(consumer_of.serve(fails_first))).await;
    let (scrape, records) = (scrape(), "campanile_consumer_records_total");
    let deferred = [(GROUP, "deferred"), (TOPIC, "orders"), (OUTCOME, "deferred")];
    scrape.assert(records, &deferred, 1.0);

    // The group has no offset, and reads the record as well.
    let stops = consumer(&kafka, "revoked", "orders").on_give_up(OnGiveUp::StopPartition);
    let fails = service_fn(async |_: Record| Err::<(), BoxError>(permanent("no").into()));
    let serving = start(stops.serve(fails));
    let stopped = [(GROUP, "revoked"), ("campanile_partition_state", "stopped")];
    scrape.reaches("campanile_consumer_partitions", &stopped, 1.0).await;
    scrape.reaches(records, &[(GROUP, "revoked"), (OUTCOME, "revoked")], 1.0).await;
    stop(serving).await;
}
