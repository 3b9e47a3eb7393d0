//! Outputs of a handler, committed together with the offsets of their records.
//!
//! The mock cluster tracks neither the offsets of transactions nor which transactions were aborted:
//! it shows everything that was sent. What a reader of a real cluster sees is tested in the
//! workspace's `tests/transactions`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    BoxError, DecodeLayer, IdempotencyKey, KeyExtractor, Outcome, Record, Reply, Request, StoreKey,
    key,
};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore, Store};
use campanile_kafka::{Consumer, ConsumerError, Output, Outputs, ProcessingOrder, Transactions};
use campanile_test::{Message, MockKafka};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message as _};
use tokio::sync::Notify;
use tower::{Service, ServiceBuilder, service_fn};

use crate::dead_letter::letters_in;
use crate::support::{Log, consumer, fill, mock, start, until};

const IN: &str = "payments";
const OUT: &str = "invoices";
const PARTITIONS: i32 = 2;
const RECORDS: usize = 20;
/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

/// Starts a cluster with records to be billed, and a topic for the invoices.
fn kafka() -> MockKafka {
    let kafka = mock(IN, PARTITIONS, RECORDS);
    kafka.create_topic(OUT, 1).unwrap();
    kafka
}

fn billing(config: &ClientConfig) -> Consumer {
    consumer(config.clone(), IN)
}

fn transactions() -> Transactions {
    Transactions::new("billing-0").with_interval(Duration::from_millis(10))
}

/// Creates the invoice of a record, which repeats the record's payload.
fn invoice(record: &Record) -> Outputs {
    let output = Output::to(OUT).key("k").header("of", record.coordinates().to_string());
    Outputs::of(record).with(output.payload(record.payload().unwrap().clone()))
}

fn billing_service(
    log: &Log,
) -> impl Service<Record, Response = Outputs, Error = BoxError, Future: Send> + Clone + Send + use<>
{
    let log = log.clone();
    service_fn(move |record: Record| {
        log.push(&record);
        async move { Ok(invoice(&record)) }
    })
}

/// Like [`billing_service`], behind the idempotency layer, with the payloads as keys.
fn guarded(
    log: &Log,
    store: MemoryStore,
) -> impl Service<Record, Response = Outcome<Outputs>, Error = BoxError, Future: Send>
+ Clone
+ Send
+ use<> {
    let layer = IdempotencyLayer::new(store, "bills", payload()).unwrap();
    let log = log.clone();
    ServiceBuilder::new().layer(DecodeLayer::raw()).layer(Outputs::stored_by(layer)).service_fn(
        move |request: Request| {
            log.push(request.record());
            async move { Ok::<_, BoxError>(invoice(request.record())) }
        },
    )
}

fn payload() -> impl KeyExtractor<Request> + Send + Sync + 'static {
    key::from_fn(|request: &Request| request.record().payload().cloned())
}

/// Reads the payloads in the invoice topic.
fn invoices(config: &ClientConfig) -> Vec<String> {
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    letters_in(config, OUT).iter().map(|letter| text(letter.payload().unwrap())).collect()
}

async fn until_sent(config: &ClientConfig, what: &str, check: impl Fn(&[String]) -> bool) {
    until(what, || check(&invoices(config))).await;
}

/// Number of records in [`kafka`]'s cluster.
const ALL: usize = RECORDS * PARTITIONS as usize;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_are_sent_once_in_partition_order() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let serving = start(
        billing(&config).serve_transactional(billing_service(&Log::default()), transactions()),
    );
    until_sent(&config, "all invoices are sent", |invoices| invoices.len() >= ALL).await;
    serving.stop().await.unwrap();
    let invoices = invoices(&config);
    assert_eq!(invoices.len(), ALL);
    for partition in 0..PARTITIONS {
        let of = invoices.iter().filter(|i| i.starts_with(&format!("{partition}-")));
        let expected: Vec<_> = (0..RECORDS).map(|n| format!("{partition}-{n}")).collect();
        assert_eq!(of.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    }
}

/// Processes all records in one transaction, which ends with the consumer, and in which the brokers answer
/// these requests with these errors.
async fn retry_without_the_handler(errors: &[(RDKafkaApiKey, &[RDKafkaRespErr])]) {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    for (request, errors) in errors {
        kafka.cluster().request_errors(*request, errors);
    }
    let log = Log::default();
    let rarely = transactions().with_interval(NEVER);
    let serving = start(billing(&config).serve_transactional(billing_service(&log), rarely));
    log.reaches(ALL).await;
    serving.stop().await.unwrap();
    assert_eq!(log.len(), ALL);
    let sent = invoices(&config);
    // The topic also has what aborted tries have sent, and the last try's outputs behind that.
    let last: BTreeSet<_> = sent.iter().rev().take(ALL).collect();
    assert_eq!(last.len(), ALL, "the last try sent all invoices");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_transaction_is_retried_without_the_handler() {
    let illegal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION;
    retry_without_the_handler(&[(RDKafkaApiKey::TxnOffsetCommit, &[illegal; 2])]).await;
}

/// A topic that is consumed was deleted, and its partitions are not revoked yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_with_offsets_of_an_unknown_topic_is_retried_without_the_handler() {
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    // librdkafka itself repeats the request every 500 ms, for 2 s.
    retry_without_the_handler(&[(RDKafkaApiKey::TxnOffsetCommit, &[unknown; 7])]).await;
}

/// The brokers never learned of the transaction, because they were unavailable when it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_unknown_to_the_brokers_is_retried_without_the_handler() {
    let illegal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION;
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TXN_STATE;
    retry_without_the_handler(&[
        (RDKafkaApiKey::TxnOffsetCommit, &[illegal]),
        (RDKafkaApiKey::EndTxn, &[unknown]),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_wait_until_earlier_records_are_finished() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let (log, first) = (Log::default(), Arc::new(Notify::new()));
    let (inner, gate) = (log.clone(), first.clone());
    let service = service_fn(move |record: Record| {
        let (log, gate) = (inner.clone(), gate.clone());
        async move {
            if (record.partition(), record.offset()) == (0, 0) {
                gate.notified().await;
            }
            log.push(&record);
            Ok::<_, BoxError>(invoice(&record))
        }
    });
    let billing = billing(&config).with_order(ProcessingOrder::unordered());
    let serving = start(billing.serve_transactional(service, transactions()));
    log.reaches(ALL - 1).await;
    // Once the last record of the other partition is sent, a transaction has begun after all of
    // those records finished.
    fill(&kafka, IN, PARTITIONS, 1);
    let of = |partition: i32| {
        move |invoices: &[String]| {
            invoices.iter().filter(|i| i.starts_with(&format!("{partition}-"))).count()
        }
    };
    until_sent(&config, "the other partition's invoices are sent", |i| of(1)(i) == RECORDS + 1)
        .await;
    assert_eq!(of(0)(&invoices(&config)), 0);
    first.notify_one();
    until_sent(&config, "the first partition's invoices are sent", |i| of(0)(i) == RECORDS + 1)
        .await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_outputs_are_sent_by_the_next_owner() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let (log, store) = (Log::default(), MemoryStore::new());
    let rarely = transactions().with_interval(NEVER);
    let first = guarded(&log, store.clone());
    let first = start(billing(&config).serve_transactional(first, rarely));
    log.reaches(ALL).await;
    let fenced = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH;
    kafka.cluster().request_errors(RDKafkaApiKey::AddPartitionsToTxn, &[fenced]);
    let error = first.stop().await.unwrap_err();
    assert!(error.to_string().contains("fenced"), "{error:?}");
    assert_eq!(invoices(&config), [""; 0]);
    let next = guarded(&log, store);
    let next = start(billing(&config).serve_transactional(next, transactions()));
    until_sent(&config, "all invoices are sent", |invoices| invoices.len() >= ALL).await;
    next.stop().await.unwrap();
    assert_eq!((invoices(&config).len(), log.len()), (ALL, ALL), "no handler ran again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_handler_sends_nothing_until_the_next_run() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let inner = log.clone();
    let hangs_at_the_first = service_fn(move |record: Record| {
        let log = inner.clone();
        async move {
            log.push(&record);
            if (record.partition(), record.offset()) == (0, 0) {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(invoice(&record))
        }
    });
    let billing = || billing(&config).with_order(ProcessingOrder::unordered());
    let dropped = start(billing().serve_transactional(hangs_at_the_first, transactions()));
    log.reaches(ALL).await;
    dropped.drop().await;
    let of_the_first =
        |invoices: &[String]| invoices.iter().filter(|i| i.starts_with("0-")).count();
    assert_eq!(of_the_first(&invoices(&config)), 0);
    let next = start(billing().serve_transactional(billing_service(&log), transactions()));
    until_sent(&config, "all invoices are sent", |sent| of_the_first(sent) >= RECORDS).await;
    next.stop().await.unwrap();
    assert_eq!(of_the_first(&invoices(&config)), RECORDS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivered_record_with_a_lost_entry_is_billed_again() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let log = Log::default();
    for (store, sent) in [(MemoryStore::new(), ALL), (MemoryStore::new(), 2 * ALL)] {
        let service = guarded(&log, store);
        let serving = start(billing(&config).serve_transactional(service, transactions()));
        until_sent(&config, "all invoices are sent", |invoices| invoices.len() >= sent).await;
        serving.stop().await.unwrap();
        assert_eq!((invoices(&config).len(), log.len()), (sent, sent));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_at_another_position_has_no_outputs() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    // All records once more, and then one new record in each partition.
    fill(&kafka, IN, PARTITIONS, RECORDS);
    let last = |p| Message::to(IN).partition(p).payload(format!("{p}-last"));
    kafka.producer().produce_all((0..PARTITIONS).map(last)).unwrap();
    let service = guarded(&Log::default(), MemoryStore::new());
    let serving = start(billing(&config).serve_transactional(service, transactions()));
    let is_last =
        |invoices: &[String]| invoices.iter().filter(|i| i.ends_with("last")).count() == 2;
    until_sent(&config, "the last invoices are sent", is_last).await;
    serving.stop().await.unwrap();
    assert_eq!(invoices(&config).len(), ALL + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer_without_stored_outputs_stops_the_consumer() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let layer = IdempotencyLayer::new(MemoryStore::new(), "bills", payload()).unwrap();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(|request: Request| async move { Ok::<_, BoxError>(invoice(request.record())) });
    let serving = start(billing(&config).serve_transactional(service, transactions()));
    let error = serving.ended().await.unwrap_err();
    assert!(format!("{error:?}").contains("Outputs::stored_by"), "{error:?}");
    assert_eq!(invoices(&config), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_of_another_record_stop_the_consumer() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let store = MemoryStore::new();
    let serve = |is_fixed: bool| {
        let layer = IdempotencyLayer::new(store.clone(), "bills", payload()).unwrap();
        let service = ServiceBuilder::new().layer(DecodeLayer::raw());
        let service =
            service.layer(Outputs::stored_by(layer)).service_fn(move |request: Request| {
                let (mut outputs, record) = (invoice(request.record()), request.record());
                if !is_fixed && (record.partition(), record.offset()) == (0, 2) {
                    outputs = invoice(&Record::builder(IN, 0, 0).payload("0-0").build());
                }
                async move { Ok::<_, BoxError>(outputs) }
            });
        start(billing(&config).serve_transactional(service, transactions()))
    };
    match serve(false).ended().await.unwrap_err() {
        ConsumerError::Stopped { at, source } => {
            assert_eq!(at.to_string(), "payments/0@2");
            assert!(format!("{source:?}").contains("payments/0@0"), "{source:?}");
        }
        other => panic!("{other:?}"),
    }
    let fixed = serve(true);
    until_sent(&config, "all invoices are sent", |sent| sent.contains(&"0-2".to_owned())).await;
    fixed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_output_stops_the_consumer_at_its_record() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let service = service_fn(|record: Record| async move {
        let size = if (record.partition(), record.offset()) == (1, 3) { 5_000 } else { 5 };
        Ok::<_, BoxError>(Outputs::of(&record).with(Output::to(OUT).payload(vec![b'x'; size])))
    });
    let small = transactions().set("message.max.bytes", "2000");
    let serving = start(billing(&config).serve_transactional(service, small));
    match serving.ended().await.unwrap_err() {
        ConsumerError::Stopped { at, source } => {
            assert_eq!(at.to_string(), "payments/1@3");
            assert!(format!("{source:?}").contains("max.message.bytes"), "{source:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_larger_than_the_queue_stops_the_consumer_at_its_record() {
    let kafka = mock(IN, 1, 1);
    kafka.create_topic(OUT, 1).unwrap();
    let large = service_fn(async |record: Record| {
        Ok::<_, BoxError>(Outputs::of(&record).with(Output::to(OUT).payload(vec![0; 5000])))
    });
    let transactions = transactions().set("queue.buffering.max.kbytes", "1");
    let serve = billing(&kafka.consumer_config("g")).serve_transactional(large, transactions);
    match start(serve).ended().await {
        Err(ConsumerError::Stopped { at, source, .. }) => {
            assert_eq!((at.partition, at.offset), (0, 0));
            assert!(format!("{source:?}").contains("queue.buffering.max.kbytes"), "{source:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_output_is_resent_until_its_key_is_reopened() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let store = MemoryStore::new();
    let serve = |size: usize| {
        let idempotency = IdempotencyConfig::new("bills").with_max_reply_bytes(10_000);
        let layer = IdempotencyLayer::new(store.clone(), idempotency, payload()).unwrap();
        let layer = Outputs::stored_by(layer);
        let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer);
        let service = service.service_fn(move |request: Request| async move {
            let is_large = (request.record().partition(), request.record().offset()) == (1, 3);
            let output = Output::to(OUT).payload(vec![b'x'; if is_large { size } else { 1 }]);
            Ok::<_, BoxError>(Outputs::of(request.record()).with(output))
        });
        let small = transactions().set("message.max.bytes", "2000");
        start(billing(&config).serve_transactional(service, small))
    };
    for size in [5_000, 5] {
        let error = serve(size).ended().await.unwrap_err();
        assert!(error.to_string().contains("payments/1@3"), "{error:?}");
    }
    let namespace = "bills".try_into().unwrap();
    let key = StoreKey::new(namespace, &IdempotencyKey::new("1-3").unwrap());
    let token = store.entry(&key).unwrap().token();
    assert_eq!(store.redrive(key, token, true).await.unwrap(), Reply::Reopened);
    let fixed = serve(5);
    until_sent(&config, "the output is sent", |sent| sent.contains(&"xxxxx".to_owned())).await;
    fixed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_with_unknown_result_is_retried_without_resending() {
    let kafka = kafka();
    let config = kafka.consumer_config("g");
    let unknown = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
    ];
    kafka.cluster().request_errors(RDKafkaApiKey::EndTxn, &unknown);
    let log = Log::default();
    let rarely = transactions().with_interval(NEVER);
    let serving = start(billing(&config).serve_transactional(billing_service(&log), rarely));
    log.reaches(ALL).await;
    serving.stop().await.unwrap();
    assert_eq!(invoices(&config).len(), ALL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_transaction_permission_is_named() {
    let id = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    let topic = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    let add = RDKafkaApiKey::AddPartitionsToTxn;
    // The error arrives while more outputs wait for room in the queue.
    let small_queue = transactions().set("queue.buffering.max.messages", "1");
    for (request, error, transactions, expected) in [
        (RDKafkaApiKey::InitProducerId, id, transactions(), "`billing-0` may not be used"),
        (add, topic, transactions(), "`Write` on each topic of its outputs"),
        (add, topic, small_queue, "`Write` on each topic of its outputs"),
    ] {
        let kafka = kafka();
        // Each time: the first refusal may arrive when the transaction has failed otherwise.
        kafka.cluster().request_errors(request, &[error; 20]);
        let billing = billing(&kafka.consumer_config("g"));
        let serving =
            start(billing.serve_transactional(billing_service(&Log::default()), transactions));
        let error = serving.ended().await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error:?}");
    }
}
