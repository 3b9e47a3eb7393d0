//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. The span
//! contains neither the key nor the payload.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use campanile_core::Record;
use campanile_core::trace::tracer;
use tracing::field::Empty;
use tracing::{Level, Span};

use crate::error::panic_text;

/// Creates the spans of attempts.
pub struct RecordSpans {
    pub(crate) group: Arc<str>,
    kind: SpanKind,
}

/// Which span an attempt has.
pub enum SpanKind {
    /// The driver's own.
    Level(Level),
    /// One that the application creates.
    Custom(Box<dyn Fn(&Record) -> Span + Send + Sync>),
}

impl RecordSpans {
    pub fn new(group: Arc<str>, kind: SpanKind) -> Self {
        Self { group, kind }
    }

    /// Creates the span of one attempt at this record. Never panics.
    pub(super) fn span(&self, record: &Record) -> Span {
        let span = match &self.kind {
            SpanKind::Level(level) => self.own_span(*level, record),
            SpanKind::Custom(create) => custom_span(create, record),
        };
        if let Some(tracer) = tracer()
            && !span.is_disabled()
        {
            tracer.follow(&span, record.headers());
        }
        span
    }

    fn own_span(&self, level: Level, record: &Record) -> Span {
        // The level of a span is a part of its static metadata, so each level needs a call site.
        macro_rules! span {
            ($level:expr) => {
                tracing::span!(
                    $level,
                    "record",
                    // The span name that OpenTelemetry's conventions specify.
                    otel.name = format_args!("process {}", record.topic()),
                    otel.kind = "consumer",
                    otel.status_code = Empty,
                    "error.type" = Empty,
                    messaging.system = "kafka",
                    messaging.operation.name = "process",
                    messaging.operation.type = "process",
                    messaging.destination.name = record.topic(),
                    // A text in the conventions.
                    messaging.destination.partition.id = %record.partition(),
                    messaging.kafka.offset = record.offset(),
                    // Absent unless it is true.
                    messaging.kafka.message.tombstone = record.payload().is_none().then_some(true),
                    messaging.consumer.group.name = &*self.group,
                    campanile.duplicate = Empty,
                )
            };
        }
        match level {
            Level::ERROR => span!(Level::ERROR),
            Level::WARN => span!(Level::WARN),
            Level::INFO => span!(Level::INFO),
            Level::DEBUG => span!(Level::DEBUG),
            Level::TRACE => span!(Level::TRACE),
        }
    }
}

fn custom_span(create: &dyn Fn(&Record) -> Span, record: &Record) -> Span {
    catch_unwind(AssertUnwindSafe(|| create(record))).unwrap_or_else(|panic| {
        let (record, error) = (record.coordinates(), panic_text(panic));
        tracing::error!(%record, error, "`with_span` panicked; processing the record without a span");
        Span::none()
    })
}
