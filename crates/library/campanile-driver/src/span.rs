//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. The span
//! contains neither the key nor the payload.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_core::Record;
use campanile_core::trace::tracer;
use tracing::field::Empty;
use tracing::{Level, Span};

use crate::error::panic_text;

/// Which span an attempt has.
pub enum SpanKind {
    /// The driver's own, at this level.
    Level(Level),
    /// One that the program creates. An attempt has none if this panics.
    Custom(Box<dyn Fn(&Record) -> Span + Send + Sync>),
}

impl SpanKind {
    /// Creates the span of one attempt at this record, by a member of this group. Never panics.
    pub(crate) fn create(&self, group: &str, record: &Record) -> Span {
        let span = match self {
            Self::Level(level) => own_span(*level, group, record),
            Self::Custom(create) => custom_span(create, record),
        };
        if let Some(tracer) = tracer()
            && !span.is_disabled()
        {
            tracer.follow(&span, record.headers());
        }
        span
    }
}

fn own_span(level: Level, group: &str, record: &Record) -> Span {
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
                    messaging.consumer.group.name = group,
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

fn custom_span(create: &dyn Fn(&Record) -> Span, record: &Record) -> Span {
    catch_unwind(AssertUnwindSafe(|| create(record))).unwrap_or_else(|panic| {
        let (record, error) = (record.coordinates(), panic_text(panic));
        tracing::error!(%record, error, "`with_span` panicked; processing the record without a span");
        Span::none()
    })
}

impl fmt::Debug for SpanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => f.debug_tuple("Level").field(level).finish(),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}
