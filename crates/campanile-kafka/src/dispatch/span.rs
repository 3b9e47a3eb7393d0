//! The span of one record's attempt, with the fields of OpenTelemetry's messaging conventions. Neither the
//! key nor the payload is among them.

use campanile_core::Record;
use tracing::Span;
use tracing::field::Empty;

pub(super) fn record(record: &Record, group: &str) -> Span {
    tracing::info_span!(
        "record",
        // What OpenTelemetry wants it to be called; the layer's step has the bare word.
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
