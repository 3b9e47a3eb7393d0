//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. The span
//! contains neither the key nor the payload.

use std::sync::Arc;

use campanile_core::Record;
use tracing::field::Empty;
use tracing::{Level, Span};

/// Creates the spans of attempts.
pub(crate) struct RecordSpans {
    pub(crate) group: Arc<str>,
    pub(crate) level: Level,
}

impl RecordSpans {
    /// Creates the span of one attempt at this record.
    pub(super) fn span(&self, record: &Record) -> Span {
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
                    messaging.system = "kafka",
                    messaging.operation.name = "process",
                    messaging.operation.type = "process",
                    messaging.destination.name = record.topic(),
                    messaging.destination.partition.id = record.partition(),
                    messaging.kafka.offset = record.offset(),
                    messaging.consumer.group.name = &*self.group,
                )
            };
        }
        match self.level {
            Level::ERROR => span!(Level::ERROR),
            Level::WARN => span!(Level::WARN),
            Level::INFO => span!(Level::INFO),
            Level::DEBUG => span!(Level::DEBUG),
            Level::TRACE => span!(Level::TRACE),
        }
    }
}
