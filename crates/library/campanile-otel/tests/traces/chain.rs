//! From a producer through a record, its handler and its output to a second consumer.

use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Output, Record, Request, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
use campanile_kafka::{Outputs, Transactions};
use campanile_test::MockKafka;
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_semantic_conventions::{SCHEMA_URL, attribute as names};
use tower::{ServiceBuilder, service_fn};

use crate::support::{Serving, Traces, attribute, consumer, links, parent, position, send};

#[tokio::test(flavor = "current_thread")]
async fn trace_continues_to_second_consumer_and_duplicate_links() {
    let traces = Traces::start();
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.create_topic("invoices", 1).unwrap();

    let config = IdempotencyConfig::new("orders").with_completed_details(true);
    let layer = IdempotencyLayer::new(MemoryStore::new(), config, key::header("id")).unwrap();
    let billing = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(Outputs::stored_by(layer))
        .service_fn(async |request: Request| {
            let invoice = Output::to("invoices").payload("100");
            Ok::<_, BoxError>(Outputs::of(request.record()).with(invoice))
        });
    let transactions = Transactions::new("billing-0").with_interval(Duration::from_millis(10));
    let serve = consumer(&kafka, "billing", "orders").serve_transactional(billing, transactions);
    let billing = Serving::start(serve);
    let mail = service_fn(async |_: Record| Ok::<_, BoxError>(()));
    let mail = Serving::start(consumer(&kafka, "mail", "invoices").serve(mail));

    let order = || Output::to("orders").header("id", "o-1").payload("1");
    let first_sent = send(&kafka, order()).await;
    let [_] = traces.until("process orders").await;
    let second_sent = send(&kafka, order()).await;
    let [first, duplicate] = traces.until("process orders").await;
    let [mailed] = traces.until("process invoices").await;
    billing.stop().await;
    mail.stop().await;

    assert_eq!(parent(&first), first_sent);
    assert_eq!(links(&first), [first_sent]);
    let handler = traces.child("process", &first);
    assert_eq!(parent(&mailed), position(&handler.span_context));
    assert_eq!(links(&mailed), [position(&handler.span_context)]);

    assert_eq!(parent(&duplicate), second_sent);
    assert_eq!(links(&duplicate), [second_sent, position(&first.span_context)]);
    let kind = &duplicate.links[1].attributes[0];
    assert_eq!(
        (kind.key.as_str(), kind.value.as_str().as_ref()),
        ("campanile.link.kind", "completed_by")
    );
    assert_eq!(attribute(&first, "campanile.duplicate"), None);
    assert_eq!(attribute(&duplicate, "campanile.duplicate"), Some(true.into()));
}

#[tokio::test(flavor = "current_thread")]
async fn attempt_span_follows_the_semantic_conventions() {
    let traces = Traces::start();
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    send(&kafka, Output::to("orders").payload("1")).await;
    send(&kafka, Output::to("orders")).await;
    let service = service_fn(async |record: Record| match record.payload() {
        Some(_) => Ok(()),
        None => Err(BoxError::from("no payload")),
    });
    let serving = Serving::start(consumer(&kafka, "billing", "orders").serve(service));
    let [span, failed] = traces.until("process orders").await;
    drop(serving);

    assert_eq!(SCHEMA_URL, "https://opentelemetry.io/schemas/1.42.0", "as documented");
    assert_eq!((&span.span_kind, &span.status), (&SpanKind::Consumer, &Status::Unset));
    for (name, value) in [
        (names::MESSAGING_SYSTEM, "kafka".into()),
        (names::MESSAGING_OPERATION_NAME, "process".into()),
        (names::MESSAGING_OPERATION_TYPE, "process".into()),
        (names::MESSAGING_DESTINATION_NAME, "orders".into()),
        (names::MESSAGING_DESTINATION_PARTITION_ID, "0".into()),
        (names::MESSAGING_CONSUMER_GROUP_NAME, "billing".into()),
    ] {
        let value: opentelemetry::Value = value;
        assert_eq!(attribute(&span, name), Some(value), "{name}");
    }
    assert_eq!(attribute(&span, names::MESSAGING_KAFKA_OFFSET), Some(0.into()));
    assert_eq!(attribute(&span, names::MESSAGING_KAFKA_MESSAGE_TOMBSTONE), None);
    assert_eq!(attribute(&failed, names::MESSAGING_KAFKA_MESSAGE_TOMBSTONE), Some(true.into()));
    assert!(matches!(failed.status, Status::Error { .. }), "{:?}", failed.status);
}
