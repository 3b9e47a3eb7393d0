//! A consumer process for tests that kill and stop it: bills records that carry a key as payload, in
//! transactions. Arguments: brokers, group, topic, invoice topic, transactional id, Redis URL or
//! `none`, folder of the history, then options: `interval_ms=20`, `lock_ms=2000`,
//! `slow_ms=0` for one record in 61, `process=NAME`, and settings of librdkafka such as
//! `session.timeout.ms=3000`.
//!
//! An invoice has the record's key, and its payload is `KEY PARTITION@OFFSET`: the record's payload
//! and its position. With a Redis there is an invoice per key, whose header `token` is the fencing token
//! of the handler's lock, without one an invoice per record. The process is called `biller-PID` in the
//! history, unless it is named.

use std::time::Duration;

use campanile::outcome::WithoutLock;
use campanile::prelude::*;
use campanile::{
    Consumer, IdempotencyConfig, Output, Outputs, ProcessingOrder, RedisConfig, Request,
    Transactions, consumer::Summary,
};
use campanile_test::history::{HistoryRecorder, TOPIC_HEADER};
use campanile_tests::{START_TIMEOUT, log_events, probe_liveness};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Installed first, because the process may be stopped at any time.
    let mut terminated = signal(SignalKind::terminate())?;
    log_events();
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = arguments.split_off(arguments.len().min(7));
    let arguments: Result<[String; 7], _> = arguments.try_into();
    let [brokers, group, topic, invoices, id, redis, folder] =
        arguments.map_err(|given| format!("expected seven arguments, got {given:?}"))?;
    let mut process = format!("biller-{}", std::process::id());
    // Expires soon after this process is killed.
    let mut lock = Duration::from_secs(2);
    let mut slow = Duration::ZERO;
    let mut config = ConsumerConfig::new(brokers, group);
    let mut transactions = Transactions::new(id);
    for option in options {
        match option.split_once('=').ok_or("options have the form NAME=VALUE")? {
            ("interval_ms", value) => {
                transactions = transactions.with_interval(Duration::from_millis(value.parse()?));
            }
            ("lock_ms", value) => lock = Duration::from_millis(value.parse()?),
            ("slow_ms", value) => slow = Duration::from_millis(value.parse()?),
            ("process", value) => process = value.into(),
            (name, value) => config = config.set(name, value),
        }
    }
    let history = HistoryRecorder::create(&folder, &*process, None)?;
    let consumer = Consumer::new(config)?
        .subscribe([topic])
        .with_start_timeout(START_TIMEOUT)
        .with_order(ProcessingOrder::by_key());
    let bill = move |request: Request| bill(request, invoices.clone(), slow);
    let serve = if redis == "none" {
        let service = ServiceBuilder::new()
            // Records the answers.
            .layer(history.answers())
            .map_response(|outputs| Outcome::WithoutLock(outputs, WithoutLock::MissingKey))
            .layer(DecodeLayer::raw())
            // Records the runs.
            .layer(history.runs())
            .service_fn(bill);
        consumer.serve_transactional(service, transactions)
    } else {
        let config = RedisConfig::new(redis).with_connect_timeout(START_TIMEOUT);
        let store = RedisStore::connect(config).await?;
        let key = key::from_fn(|request: &Request| request.record().payload().cloned());
        let idempotency = IdempotencyConfig::new("bills").with_lock_ttl(lock);
        let layer = IdempotencyLayer::new(store, idempotency, key)?;
        let service = ServiceBuilder::new()
            // Records the answers.
            .layer(history.answers())
            .layer(DecodeLayer::raw())
            // An invoice per key, kept in the key's entry.
            .layer(Outputs::stored_by(layer))
            // Records the runs.
            .layer(history.runs())
            .service_fn(bill);
        consumer.serve_transactional(service, transactions)
    };
    probe_liveness(serve.handle(), &folder, &process);
    let summary: Summary = serve
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn bill(request: Request, invoices: String, slow: Duration) -> Result<Outputs, BoxError> {
    let record = request.record();
    let account = record.key().ok_or("record without a key")?.clone();
    let id = std::str::from_utf8(record.payload().ok_or("record without a payload")?)?;
    // Some records take longer, so that records finish out of order.
    if record.offset() % 16 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if record.offset() % 61 == 0 {
        tokio::time::sleep(slow).await;
    }
    let text = format!("{id} {}@{}", record.partition(), record.offset());
    let mut invoice = Output::to(invoices).key(account).payload(text);
    // The topic was recreated.
    if let Some(name) = record.headers().get_str(TOPIC_HEADER) {
        invoice = invoice.header(TOPIC_HEADER, name.to_owned());
    }
    if let Ok(lock) = request.lock() {
        invoice = invoice.header("token", lock.token().to_string());
    }
    Ok(Outputs::of(record).with(invoice))
}
