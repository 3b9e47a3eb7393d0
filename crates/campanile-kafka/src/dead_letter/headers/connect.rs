//! The headers of Kafka Connect's dead letter queues.
//!
//! Names and values are those that
//! `org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter` writes: all text in UTF-8,
//! numbers in decimal.

use super::cause::CauseKind;
use super::{Header, Letter, put};

/// `DeadLetterQueueReporter.HEADER_PREFIX`.
pub(super) const PREFIX: &str = "__connect.errors.";

pub(super) fn add(letter: &Letter<'_>, headers: &mut Vec<Header>) {
    let (origin, cause) = (letter.record.origin(), letter.cause);
    let mut add = |name: &str, value: String| put(headers, format!("{PREFIX}{name}"), value);
    add("topic", origin.topic.to_string());
    add("partition", origin.partition.to_string());
    add("offset", origin.offset.to_string());
    add("connector.name", letter.group.to_owned());
    add("stage", stage(cause.kind).to_owned());
    add("class.name", format!("campanile.{}", cause.kind.layer()));
    add("exception.class.name", format!("campanile.{}", cause.kind.name()));
    add("exception.message", cause.message.clone());
    add("exception.stacktrace", cause.trace.clone());
}

/// Maps the kind to the corresponding name in `org.apache.kafka.connect.runtime.errors.Stage`.
fn stage(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::DecodeError => "VALUE_CONVERTER",
        _ => "TASK_PUT",
    }
}
