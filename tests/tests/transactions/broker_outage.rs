//! Brokers that are unavailable for longer than the transaction timeout.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, Output, Outputs, Transactions};
use campanile_test::{KafkaServer, Message, Proxy, eventually};
use tokio::sync::oneshot;

use crate::invoices::Invoice;
use crate::{PARTITIONS, TIMEOUT, group, invoices, start_behind_proxy};

const RECORDS: usize = 6_000;

/// Starts a broker behind a proxy, with payments.
fn with_payments() -> (KafkaServer, Proxy) {
    let (kafka, proxy) = start_behind_proxy();
    for topic in ["payments", "invoices"] {
        kafka.create_topic(topic, PARTITIONS, &[]).unwrap();
    }
    let payment = |id: usize| {
        let message = Message::to("payments").partition(id as i32 % PARTITIONS);
        message.payload(format!("p-{id}"))
    };
    kafka.producer().produce_all((0..RECORDS).map(payment)).unwrap();
    (kafka, proxy)
}

async fn bill(record: Record) -> Result<Outputs, BoxError> {
    // Makes transactions follow each other, so that one is open whenever the brokers become
    // unavailable.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let text = std::str::from_utf8(record.payload().expect("a payment"))?;
    let partition = record.partition();
    let invoice = Output::to("invoices")
        .key(format!("a-{partition}"))
        .payload(format!("{text} {partition}@{}", record.offset()));
    Ok(Outputs::of(&record).with(invoice))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_outage_beyond_transaction_timeout_ends_no_consumer() {
    let (kafka, proxy) = tokio::task::spawn_blocking(with_payments).await.unwrap();
    let mut config = kafka.consumer_config("billing");
    // The consumer keeps its partitions in the meantime.
    config.set("bootstrap.servers", proxy.addr().to_string()).set("session.timeout.ms", "45000");
    let transactions = Transactions::new("billing-0")
        .with_interval(Duration::from_millis(1))
        .set("transaction.timeout.ms", "1000");
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = Consumer::new(config)
        .unwrap()
        .subscribe(["payments"])
        .serve_transactional(tower::service_fn(bill), transactions)
        .with_graceful_shutdown(async move { stopped.await.unwrap_or_default() });
    let mut serving = tokio::spawn(serve.into_future());
    let outage = tokio::task::spawn_blocking(move || {
        let wait_for_outputs = |at_least: usize| {
            let sent = || invoices::read(&kafka, "invoices", "read_uncommitted").len();
            eventually(TIMEOUT, || (sent() >= at_least).then_some(())).expect("outputs are sent");
        };
        wait_for_outputs(200);
        // First, requests are not executed. Then, requests are executed but their replies are lost.
        proxy.cut();
        std::thread::sleep(Duration::from_secs(4));
        proxy.heal().unwrap();
        wait_for_outputs(800);
        proxy.swallow_replies();
        std::thread::sleep(Duration::from_secs(4));
        proxy.heal().unwrap();
        group::wait_until_committed(
            &kafka.consumer_config("billing"),
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
    let unit_of = |invoice: &Invoice| format!("{}@{}", invoice.partition, invoice.offset);
    let read = move || invoices::read(&kafka, "invoices", "read_committed");
    let invoices = tokio::task::spawn_blocking(read).await.unwrap();
    assert_eq!(invoices::violations(&invoices, RECORDS, unit_of), [""; 0]);
}
