//! Captures the exported spans, and serves records of a mock cluster.

use std::sync::Once;
use std::time::Duration;

use campanile_core::{Output, Record};
use campanile_kafka::{Consumer, ConsumerError, Handle, Publisher, Serve, Summary};
use campanile_otel::Relation;
use campanile_test::MockKafka;
use opentelemetry::Value;
use opentelemetry::trace::{SpanContext, TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The spans that this thread has exported.
pub(crate) struct Traces {
    exporter: InMemorySpanExporter,
    _subscriber: DefaultGuard,
}

impl Traces {
    pub(crate) fn start() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| campanile_otel::install(Relation::default()).unwrap());
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(LevelFilter::DEBUG).with(layer);
        Self { exporter, _subscriber: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the spans of this name, in the order in which they ended.
    pub(crate) fn spans(&self, name: &str) -> Vec<SpanData> {
        let spans = self.exporter.get_finished_spans().unwrap().into_iter();
        spans.filter(|span| span.name == name).collect()
    }

    /// Waits until this number of spans of this name have ended, and returns the first ones. A record
    /// that has failed soon gets another attempt.
    pub(crate) async fn until<const N: usize>(&self, name: &str) -> [SpanData; N] {
        until(name, || self.spans(name).len() >= N).await;
        let first = self.spans(name).into_iter().take(N).collect::<Vec<_>>();
        first.try_into().unwrap_or_else(|spans| panic!("{spans:?}"))
    }

    /// Finds the span of this name with this parent.
    pub(crate) fn child(&self, name: &str, parent: &SpanData) -> SpanData {
        let is_child = |span: &SpanData| span.parent_span_id == parent.span_context.span_id();
        self.spans(name).into_iter().find(is_child).unwrap()
    }
}

pub(crate) fn attribute(span: &SpanData, name: &str) -> Option<Value> {
    let mut attributes = span.attributes.iter();
    attributes.find(|attribute| attribute.key.as_str() == name).map(|found| found.value.clone())
}

/// Returns the positions to which a span links.
pub(crate) fn links(span: &SpanData) -> Vec<Position> {
    span.links.iter().map(|link| position(&link.span_context)).collect()
}

/// The identifiers of a trace and a span.
pub(crate) type Position = (String, String);

pub(crate) fn position(context: &SpanContext) -> Position {
    (context.trace_id().to_string(), context.span_id().to_string())
}

/// Returns the position in a record's only `traceparent`.
pub(crate) fn position_of_header(record: &Record) -> Position {
    let values: Vec<_> = record.headers().all("traceparent").collect();
    let [Some(value)] = values[..] else { panic!("{values:?}") };
    let text = str::from_utf8(value).unwrap();
    let fields: Vec<_> = text.split('-').collect();
    (fields[1].to_owned(), fields[2].to_owned())
}

pub(crate) fn parent(span: &SpanData) -> Position {
    (span.span_context.trace_id().to_string(), span.parent_span_id.to_string())
}

/// Publishes in a span of its own, as a service that is traced does. Returns the position of the span.
pub(crate) async fn send(kafka: &MockKafka, output: Output) -> Position {
    let span = tracing::info_span!("send", otel.kind = "producer");
    let publisher = Publisher::new(kafka.bootstrap()).unwrap();
    publisher.oneshot(output).instrument(span.clone()).await.unwrap();
    context_of(&span)
}

pub(crate) fn context_of(span: &Span) -> Position {
    position(span.context().span().span_context())
}

/// Creates a consumer of this topic. If it is only stalled, it keeps its partitions.
pub(crate) fn consumer(kafka: &MockKafka, group: &str, topic: &str) -> Consumer {
    let mut config = kafka.consumer_config(group);
    config.set("session.timeout.ms", "20000");
    Consumer::new(config).unwrap().subscribe([topic])
}

/// A consumer while it serves.
pub(crate) struct Serving {
    handle: Handle,
    task: JoinHandle<Result<Summary, ConsumerError>>,
}

impl Serving {
    pub(crate) fn start(serve: Serve) -> Self {
        Self { handle: serve.handle(), task: tokio::spawn(serve.into_future()) }
    }

    pub(crate) async fn stop(self) {
        self.handle.shutdown();
        tokio::time::timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }
}

pub(crate) async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let poll = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(TIMEOUT, poll).await;
    assert!(ended.is_ok(), "timed out waiting for {what}");
}
