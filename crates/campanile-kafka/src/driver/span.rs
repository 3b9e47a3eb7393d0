//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. The span
//! contains neither the key nor the payload.

use campanile_core::Record;
use tracing::Span;
use tracing::field::Empty;

pub(super) fn record(record: &Record, group: &str) -> Span {
    tracing::debug_span!(
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
        messaging.consumer.group.name = group,
    )
}
