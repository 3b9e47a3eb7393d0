//! The span of one attempt, with the fields of OpenTelemetry's messaging conventions. Neither the
//! key nor the payload is among them.

use campanile_core::Record;
use tracing::Span;
use tracing::field::Empty;

pub(super) fn process(record: &Record, group: &str) -> Span {
    tracing::info_span!(
        "process",
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
