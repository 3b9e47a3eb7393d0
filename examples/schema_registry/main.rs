//! Payments in Avro, with a schema registry: `cargo run --example schema_registry`.
//!
//! The messages have Confluent's wire format, and were written with two versions of a schema. The
//! consumer fetches each schema once from the registry, and decodes before it acquires a lock. If
//! the registry does not answer, the record waits; if the bytes are invalid, the record is given up.
//!
//! The registry runs in this process, and is unavailable at first. The broker is librdkafka's mock,
//! or a real one as for `quickstart`.
//!
//! The module to copy is `decoder`. Its `Cargo.toml` needs apache-avro, campanile, http-body-util,
//! hyper-util with the features `client-legacy`, `http1` and `tokio`, serde and tokio.

mod decoder;
mod registry;

use apache_avro::Schema;
use apache_avro::writer::datum::GenericDatumWriter;
use campanile::prelude::*;
use campanile::{Consumer, OnGiveUp, Request};
use campanile_examples::{Environment, EventLog};
use campanile_test::Message;
use serde::{Deserialize, Serialize};
use tower::ServiceBuilder;

use crate::decoder::AvroDecoder;
use crate::registry::Registry;

/// The first version of the schema.
const VERSION_1: (u32, &str) = (
    1,
    r#"{ "type": "record", "name": "Payment", "fields": [
        { "name": "id", "type": "string" },
        { "name": "cents", "type": "long" } ] }"#,
);

/// The second version, with one more field.
const VERSION_2: (u32, &str) = (
    2,
    r#"{ "type": "record", "name": "Payment", "fields": [
        { "name": "id", "type": "string" },
        { "name": "currency", "type": "string" },
        { "name": "cents", "type": "long" } ] }"#,
);

/// A payment, decoded from either version. The fields of a record are matched by name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Payment {
    id: String,
    cents: i64,
    /// Missing in the first version.
    #[serde(default = "euro")]
    currency: String,
}

fn euro() -> String {
    "EUR".to_owned()
}

/// The handler: charges a payment.
async fn charge(charged: EventLog<Payment>, request: Request<Payment>) -> Result<(), BoxError> {
    charged.push(request.into_body());
    Ok(())
}

/// Encodes a message as a serializer with a schema registry does.
fn encode((id, schema): (u32, &str), payment: &impl Serialize) -> Result<Vec<u8>, BoxError> {
    let schema = Schema::parse_str(schema)?;
    let mut message = vec![0];
    message.extend(id.to_be_bytes());
    GenericDatumWriter::builder(&schema).build()?.write_ser(&mut message, payment)?;
    Ok(message)
}

/// The payloads that are sent, all to one partition.
fn payloads() -> Result<Vec<Vec<u8>>, BoxError> {
    #[derive(Serialize)]
    struct Payment1 {
        id: &'static str,
        cents: i64,
    }
    #[derive(Serialize)]
    struct Payment2 {
        id: &'static str,
        currency: &'static str,
        cents: i64,
    }
    let first = encode(VERSION_1, &Payment1 { id: "p-1", cents: 100 })?;
    let second = encode(VERSION_2, &Payment2 { id: "p-2", currency: "CHF", cents: 200 })?;
    let third = encode(VERSION_2, &Payment2 { id: "p-3", currency: "SEK", cents: 300 })?;
    let duplicate = first.clone();
    let (_, version_1) = VERSION_1;
    let unknown_schema = encode((3, version_1), &Payment1 { id: "p-4", cents: 400 })?;
    let truncated = first[..first.len() - 1].to_vec();
    let with_more_bytes = [&first[..], &[0]].concat();
    let not_avro = b"{}".to_vec();
    Ok(vec![first, duplicate, second, unknown_schema, truncated, with_more_bytes, not_avro, third])
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let environment = Environment::from_args()?;
    let messages = payloads()?.into_iter().map(|payload| {
        // the same record key, for one partition and thus for this order
        Message::to(&*environment.topic).key("alice").payload(payload)
    });
    environment.send(messages)?;

    let registry = Registry::start([VERSION_1, VERSION_2]).await?;
    let charged = EventLog::default();
    // the payment of the last message
    let last = charged.wait_for(1, |payment: &Payment| payment.id == "p-3");
    let log = charged.clone();
    let decoder = AvroDecoder::new(registry.url());
    let service = ServiceBuilder::new()
        // records that fail to decode, or wait for their schema, never acquire a lock
        .layer(DecodeLayer::with_async(move |record| decoder.clone().decode::<Payment>(record)))
        // one lock for each payment
        .layer(IdempotencyLayer::new(
            MemoryStore::new(),
            "billing.payments",
            key::field(|p: &Payment| &p.id),
        )?)
        .service_fn(move |request| charge(log.clone(), request));
    let summary = Consumer::new(environment.consumer("billing"))?
        .subscribe([&*environment.topic])
        // a service would publish them to a dead-letter topic
        .on_give_up(OnGiveUp::Skip)
        .serve(service)
        .with_graceful_shutdown(last)
        .await?;

    let charged = charged.take();
    for Payment { id, cents, currency } in &charged {
        println!("charged {id}: {cents} cents in {currency}");
    }
    println!("records that do not decode    {:>3}", summary.skipped);
    println!("retries                       {:>3}", summary.retried);
    println!("requests to the registry      {:>3}", registry.requests());
    let currencies: Vec<&str> = charged.iter().map(|payment| &*payment.currency).collect();
    assert_eq!(currencies, ["EUR", "CHF", "SEK"], "one charge for each payment");
    assert_eq!((summary.processed, summary.skipped), (4, 4));
    // One while the registry was unavailable, one for each schema, and one for the unknown schema; and
    // another one if a record was decoded ahead of its turn and then interrupted. Without the cache of
    // the decoder there would be one for each record.
    assert!((4..8).contains(&registry.requests()));
    Ok(())
}
