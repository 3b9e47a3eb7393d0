//! The spans of a record: one for the record and one for each step, without any of the record's
//! content.
//!
//! A separate binary, because tracing caches for the whole process whether a callsite is enabled,
//! and other tests would reach the callsites first, without a subscriber.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Backoff, Consumer, IdempotencyConfig, LockHandle, Request};
use campanile_test::{Message, MockKafka};
use tokio::sync::Notify;
use tower::ServiceBuilder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Values};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Captures every span with its parent and fields, and every event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Lines {
    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let parent = span.parent().map_or("", |parent| parent.name());
        let mut line = format!("{parent}/{}", span.name());
        attributes.record(&mut Fields(&mut line));
        writeln!(self.0.lock().unwrap(), "{line}").unwrap();
    }

    fn on_record(&self, _: &Id, values: &Values<'_>, _: Context<'_, S>) {
        values.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

#[tokio::test]
async fn record_and_step_spans_have_otel_fields_and_no_content() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("payments", 1).unwrap();
    let message = Message::to("payments").header("id", "secret").payload("secret");
    kafka.producer().produce(message).unwrap();
    let at_once = Backoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
    let config = IdempotencyConfig::new("spans").with_backoff(at_once);
    let done = Arc::new(Notify::new());
    let is_done = done.clone();
    let service = ServiceBuilder::new()
        .map_response(move |_: Outcome<()>| done.notify_one())
        .layer(DecodeLayer::bytes())
        .layer(IdempotencyLayer::new(MemoryStore::new(), config, key::header("id")).unwrap())
        .service_fn(async |request: Request<_>| {
            tracing::info!("at work");
            match request.lock().ok().map(LockHandle::attempt) {
                Some(1) => Err(BoxError::from("declined")),
                _ => Ok(()),
            }
        });
    Consumer::new(ConsumerConfig::from(kafka.consumer_config("spans")))
        .unwrap()
        .subscribe(["payments"])
        .serve(service)
        .with_graceful_shutdown(async move { is_done.notified().await })
        .await
        .unwrap();

    let text = lines.text();
    for expected in [
        "/record otel.name=process payments",
        "messaging.system=\"kafka\"",
        "messaging.destination.name=\"payments\"",
        "messaging.destination.partition.id=",
        "messaging.kafka.offset=0",
        "messaging.consumer.group.name=\"spans\"",
        "record/key",
        "record/acquire",
        "record/process campanile.token=",
        "campanile.attempt=1",
        "record/fail",
        " error.type=\"attempt_failed\" otel.status_code=\"ERROR\"",
        "campanile.attempt=2",
        "record/complete",
    ] {
        assert!(text.contains(expected), "no {expected} in\n{text}");
    }
    assert_eq!(text.matches("error.type").count(), 1, "{text}");
    assert!(!text.contains("secret"), "{text}");
}
