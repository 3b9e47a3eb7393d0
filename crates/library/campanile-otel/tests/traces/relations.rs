//! How a span is related to the trace in a record's headers.

use campanile_core::trace::TraceContext;
use campanile_core::{BoxError, Output, Record, Request, State, StoreKey, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use campanile_otel::{Relation, follow};
use opentelemetry::trace::SpanId;
use opentelemetry_sdk::trace::SpanData;
use tower::{Layer, ServiceExt, service_fn};
use tracing::Instrument;

use crate::support::{Position, Traces, context_of, links, parent};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn producer() -> Position {
    ("4bf92f3577b34da6a3ce929d0e0e4736".into(), "00f067aa0ba902b7".into())
}

fn record(traceparent: &'static str) -> Record {
    let record = Record::builder("orders", 0, 0).header("traceparent", traceparent);
    record.header("tracestate", "vendor=1").build()
}

/// Exports a span that follows this record.
async fn span(record: &Record, relation: Relation) -> SpanData {
    let traces = Traces::start();
    let span = tracing::info_span!("attempt");
    follow(&span, record.headers(), relation);
    span.in_scope(|| {});
    drop(span);
    let [span] = traces.until("attempt").await;
    span
}

#[tokio::test(flavor = "current_thread")]
async fn relation_decides_between_parent_and_link() {
    let record = record(TRACEPARENT);
    let both = span(&record, Relation::ParentAndLink).await;
    assert_eq!((parent(&both), links(&both)), (producer(), vec![producer()]));
    let child = span(&record, Relation::Parent).await;
    assert_eq!((parent(&child), links(&child)), (producer(), vec![]));
    let linked = span(&record, Relation::Link).await;
    assert_eq!((linked.parent_span_id, links(&linked)), (SpanId::INVALID, vec![producer()]));
    assert_ne!(parent(&linked).0, producer().0);
}

#[tokio::test(flavor = "current_thread")]
async fn invalid_traceparent_starts_a_new_trace() {
    let span = span(&record("00-zz"), Relation::default()).await;
    assert_eq!((span.parent_span_id, links(&span)), (SpanId::INVALID, vec![]));
}

#[tokio::test(flavor = "current_thread")]
async fn output_carries_current_span_and_state_of_the_producer() {
    let _traces = Traces::start();
    let span = tracing::info_span!("attempt");
    follow(&span, record(TRACEPARENT).headers(), Relation::default());
    let stale = Output::to("t").header("tracestate", "stale=1");
    let output = span.in_scope(|| stale.with_current_trace());
    let (trace_id, span_id) = context_of(&span);
    let expected = [
        ("traceparent".to_owned(), Some(format!("00-{trace_id}-{span_id}-01").into())),
        ("tracestate".to_owned(), Some("vendor=1".into())),
    ];
    assert_eq!(output.headers, expected);

    let given = Output::to("t").header("traceparent", TRACEPARENT);
    assert!(span.in_scope(|| given.clone().with_current_trace()) == given);
    assert!(Output::to("t").with_current_trace() == Output::to("t"), "no span is current");
}

/// Returns the trace in the entry of a record that was processed in this span.
async fn trace_of_entry(span: tracing::Span) -> TraceContext {
    let store = MemoryStore::new();
    let layer = IdempotencyLayer::new(store.clone(), "orders", key::coordinates()).unwrap();
    let fails = layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("busy".into())));
    let request = Request::new(record(TRACEPARENT), ());
    fails.oneshot(request).instrument(span).await.unwrap_err();
    let key = campanile_core::IdempotencyKey::new("orders/0@0").unwrap();
    let entry = store.entry(&StoreKey::new("orders".try_into().unwrap(), &key)).unwrap();
    assert_eq!(entry.state(), State::Retrying);
    entry.details().unwrap().trace().unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn entry_has_trace_of_the_run_or_else_of_the_record() {
    let _traces = Traces::start();
    let span = tracing::info_span!("attempt");
    let (trace_id, span_id) = context_of(&span);
    let trace = trace_of_entry(span).await;
    assert_eq!(trace.to_string(), format!("00-{trace_id}-{span_id}-01"));
    let trace = trace_of_entry(tracing::Span::none()).await;
    assert_eq!(trace.to_string(), TRACEPARENT);
}

#[tokio::test(flavor = "current_thread")]
async fn second_installation_is_an_error() {
    let _traces = Traces::start();
    let error = campanile_otel::install(Relation::Link).unwrap_err();
    assert!(error.to_string().contains("already set"), "{error}");
}
