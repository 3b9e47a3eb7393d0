//! A consumer process to be killed and stopped: bills records whose payload is a key, in transactions.
//! Arguments: brokers, group, topic, topic of the invoices, transactional id, Redis URL or `none`, then
//! options: `interval_ms=20`, and settings of librdkafka as `session.timeout.ms=3000`.
//!
//! An invoice has the record's key, and as its payload `KEY PARTITION@OFFSET`: the record's payload, and
//! where it stood. With a Redis there is one for each key, without one for each record.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Order, Output, Outputs, Summary, Transactions};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // First, for it may be stopped at any moment.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = arguments.split_off(arguments.len().min(6));
    let arguments: Result<[String; 6], _> = arguments.try_into();
    let [brokers, group, topic, invoices, id, redis] =
        arguments.map_err(|given| format!("six arguments, not {given:?}"))?;

    let mut config = ConsumerConfig::new(brokers, group);
    let mut transactions = Transactions::new(id);
    for option in options {
        match option.split_once('=').ok_or("an option is NAME=VALUE")? {
            ("interval_ms", value) => {
                transactions = transactions.with_interval(Duration::from_millis(value.parse()?));
            }
            (name, value) => config = config.set(name, value),
        }
    }
    let consumer = Consumer::new(config)?.subscribe([topic]).with_order(Order::by_key());
    let bill = move |request: Request| bill(request, invoices.clone());
    let serve = if redis == "none" {
        let service = ServiceBuilder::new().layer(DecodeLayer::raw()).service_fn(bill);
        consumer.serve_transactional(service, transactions)
    } else {
        let store = RedisStore::connect(redis).await?;
        let key = key::from_fn(|request: &Request| request.record().payload().cloned());
        let layer = IdempotencyLayer::new(store, "bills", key)?
            // soon taken over when this process is killed
            .with_lock_ttl(Duration::from_secs(2))?;
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::raw())
            // one invoice for each key, kept in its entry
            .layer(Outputs::kept_by(layer))
            .service_fn(bill);
        consumer.serve_transactional(service, transactions)
    };
    let summary: Summary = serve
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn bill(request: Request, invoices: String) -> Result<Outputs, BoxError> {
    let record = request.record();
    let account = record.key().ok_or("a record key")?.clone();
    let id = std::str::from_utf8(record.payload().ok_or("a payload")?)?;
    // Some take longer, so that records end out of order.
    if record.offset() % 16 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = format!("{id} {}@{}", record.partition(), record.offset());
    Ok(Outputs::of(record).with(Output::to(invoices).key(account).payload(text)))
}
