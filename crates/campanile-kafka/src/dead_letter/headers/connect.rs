//! The headers of Kafka Connect's dead letter queues.
//!
//! Names and values are those that
//! `org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter` writes: all text in UTF-8,
//! numbers in decimal.

use campanile_core::{Coordinates, Headers, Timestamp};

use super::cause::CauseKind;
use super::{Header, Letter, put};
use crate::retry_topics::OriginHeaders;

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

/// Reads the timestamp of the original record, which a letter has as a copy in a retry topic has it.
pub(super) fn original_timestamp(headers: &Headers) -> Option<Timestamp> {
    let mut origin = OriginHeaders::default();
    for (name, value) in headers.iter() {
        origin.consume(name.as_bytes(), value.map(|value| &value[..]));
    }
    origin.timestamp
}

/// Reads the coordinates of the original record.
pub(super) fn origin(headers: &Headers) -> Option<Coordinates> {
    Some(Coordinates {
        topic: header(headers, "topic")?.into(),
        partition: header(headers, "partition")?.parse().ok()?,
        offset: header(headers, "offset")?.parse().ok()?,
    })
}

/// Reads the message of the error.
pub(super) fn message(headers: &Headers) -> Option<&str> {
    header(headers, "exception.message")
}

fn header<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.get_str(&format!("{PREFIX}{name}"))
}

/// Maps the kind to the corresponding name in `org.apache.kafka.connect.runtime.errors.Stage`.
fn stage(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::DecodeError => "VALUE_CONVERTER",
        _ => "TASK_PUT",
    }
}
