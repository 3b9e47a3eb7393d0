//! Brokers that are unavailable for longer than the timeout of a transaction, or of its outputs.

use std::sync::Arc;
use std::time::Duration;

use campanile::outcome::WithoutLock;
use campanile::prelude::*;
use campanile::{Consumer, Output, Outputs, Request, Transactions};
use campanile_test::history::{self as recorded, FaultKind, Order, Peer};
use campanile_test::{KafkaServer, Message, Proxy, eventually};
use rdkafka::Message as _;
use tokio::sync::{Notify, oneshot};
use tower::ServiceBuilder;

use crate::history::{self, TestHistory};
use crate::{PARTITIONS, TIMEOUT, group, invoices, start_behind_proxy};

const RECORDS: usize = 6_000;

/// Starts a broker behind a proxy, with payments.
fn with_payments(history: &TestHistory) -> (KafkaServer, Proxy) {
    let (kafka, proxy) = start_behind_proxy();
    for topic in ["payments", "invoices"] {
        kafka.create_topic(topic, PARTITIONS, &[]).unwrap();
    }
    let payment = |id: usize| {
        let message = Message::to("payments").partition(id as i32 % PARTITIONS);
        (message.payload(format!("p-{id}")), None, None)
    };
    let payments = (0..RECORDS).map(payment);
    history::produce::<Option<_>>(&history.recorder, kafka.producer(), "payments", payments);
    (kafka, proxy)
}

async fn bill(request: Request) -> Result<Outputs, BoxError> {
    let record = request.record();
    // Makes transactions follow each other, so that one is open whenever the brokers become
    // unavailable.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let text = std::str::from_utf8(record.payload().expect("a payment"))?;
    let partition = record.partition();
    let invoice = Output::to("invoices")
        .key(format!("a-{partition}"))
        .payload(format!("{text} {partition}@{}", record.offset()));
    Ok(Outputs::of(record).with(invoice))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_outage_beyond_transaction_timeout_ends_no_consumer() {
    let setup = tokio::task::spawn_blocking(|| {
        let transactions = Some(recorded::Transactions::Broker);
        // There are no locks.
        let history =
            TestHistory::with_transactions(Order::Partition, Duration::ZERO, transactions);
        let (kafka, proxy) = with_payments(&history);
        (history, kafka, proxy)
    });
    let (history, kafka, proxy) = setup.await.unwrap();
    let mut config = kafka.consumer_config("payments");
    // The consumer keeps its partitions in the meantime.
    config.set("bootstrap.servers", proxy.addr().to_string()).set("session.timeout.ms", "45000");
    let transactions = Transactions::new("billing-0")
        .with_interval(Duration::from_millis(1))
        .set("transaction.timeout.ms", "1000");
    let recorder = history.recorder.clone();
    let service = ServiceBuilder::new()
        // Records the answers.
        .layer(recorder.answers())
        .map_response(|outputs| Outcome::WithoutLock(outputs, WithoutLock::MissingKey))
        .layer(DecodeLayer::raw())
        // Records the runs.
        .layer(recorder.runs())
        .service_fn(bill);
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = Consumer::new(config)
        .unwrap()
        .subscribe(["payments"])
        .serve_transactional(service, transactions)
        .with_graceful_shutdown(async move { stopped.await.unwrap_or_default() });
    let mut serving = tokio::spawn(serve.into_future());
    let outage = tokio::task::spawn_blocking(move || {
        let wait_for_outputs = |at_least: usize| {
            let sent = || invoices::read(&kafka, "invoices", "read_uncommitted").len();
            eventually(TIMEOUT, || (sent() >= at_least).then_some(())).expect("outputs are sent");
        };
        // First, requests are not executed. Then, requests are executed but their replies are lost.
        let fault = |outputs: usize, start: fn(&Proxy)| {
            wait_for_outputs(outputs);
            let at = recorder.now();
            start(&proxy);
            std::thread::sleep(Duration::from_secs(4));
            proxy.heal().unwrap();
            let kind = FaultKind::NetworkCut { process: None, peer: Peer::Broker };
            recorder.fault(at, Some(recorder.now()), kind);
        };
        fault(200, Proxy::cut);
        fault(800, Proxy::swallow_replies);
        group::wait_until_committed(
            &kafka.consumer_config("payments"),
            "payments",
            PARTITIONS,
            TIMEOUT,
        );
        (kafka, proxy)
    });
    let (kafka, _proxy) = tokio::select! {
        ended = &mut serving => panic!("{ended:?}"),
        outage = outage => outage.unwrap(),
    };
    stop.send(()).unwrap();
    serving.await.unwrap().expect("the consumer continues when the brokers are back");
    let judged = tokio::task::spawn_blocking(move || {
        let invoices = invoices::read(&kafka, "invoices", "read_committed");
        invoices::record(&history, &kafka, "payments", &invoices);
        // No handler ran twice.
        history.judge(&[]).finish("broker outage", format_args!(""))
    });
    judged.await.unwrap();
}

/// The brokers know nothing of a transaction whose first request was lost, and refuse to abort it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_begun_in_an_outage_is_sent_again_after_it() {
    let setup = tokio::task::spawn_blocking(|| {
        let (kafka, proxy) = start_behind_proxy();
        for topic in ["payments", "invoices"] {
            kafka.create_topic(topic, 1, &[]).unwrap();
        }
        kafka.producer().produce_all((0..2).map(|_| Message::to("payments"))).unwrap();
        (kafka, proxy)
    });
    let (kafka, proxy) = setup.await.unwrap();
    let mut config = kafka.consumer_config("payments");
    config.set("session.timeout.ms", "45000");
    let transactions = Transactions::new("billing-0")
        .with_interval(Duration::from_millis(1))
        .set("message.timeout.ms", "1000");
    let (began, resume) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, resumed) = (began.clone(), resume.clone());
    let service = tower::service_fn(move |record: Record| {
        let (begins, resumed) = (begins.clone(), resumed.clone());
        async move {
            if record.offset() == 1 {
                begins.notify_one();
                resumed.notified().await;
            }
            let invoice = Output::to("invoices").payload(record.offset().to_string());
            Ok::<_, BoxError>(Outputs::of(&record).with(invoice))
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = Consumer::new(config.clone())
        .unwrap()
        .subscribe(["payments"])
        .serve_transactional(service, transactions)
        .with_graceful_shutdown(async move { stopped.await.unwrap_or_default() });
    let mut serving = tokio::spawn(serve.into_future());
    began.notified().await;
    let outage = tokio::task::spawn_blocking(move || {
        let invoices = || invoices::messages(&kafka, "invoices", 1, "read_committed");
        let first = || (invoices().len() == 1).then_some(());
        eventually(TIMEOUT, first).expect("the first record is committed");
        proxy.swallow_requests();
        resume.notify_one();
        std::thread::sleep(Duration::from_secs(3));
        proxy.heal().unwrap();
        group::wait_until_committed(&config, "payments", 1, TIMEOUT);
        invoices()
    });
    let invoices = tokio::select! {
        ended = &mut serving => panic!("{ended:?}"),
        invoices = outage => invoices.unwrap(),
    };
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let payloads: Vec<_> = invoices.iter().map(|it| it.payload().unwrap_or_default()).collect();
    assert_eq!(payloads, [b"0", b"1"]);
}
