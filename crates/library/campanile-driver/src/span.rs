//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. The span
//! contains neither the key nor the payload.

use campanile_core::Record;
use campanile_core::trace::tracer;
use tracing::field::Empty;
use tracing::{Level, Span};

/// Creates the span of one attempt at this record, by a member of this group.
pub(crate) fn attempt_span(level: Level, group: &str, record: &Record) -> Span {
    let span = span_at(level, group, record);
    if let Some(tracer) = tracer()
        && !span.is_disabled()
    {
        tracer.follow(&span, record.headers());
    }
    span
}

fn span_at(level: Level, group: &str, record: &Record) -> Span {
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
