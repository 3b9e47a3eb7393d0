//! The headers of Spring for Apache Kafka.
//!
//! Names are those of `org.springframework.kafka.support.KafkaHeaders`. Values are those that
//! `org.springframework.kafka.listener.DeadLetterPublishingRecoverer` writes: text in UTF-8, and
//! numbers in big-endian order, as `ByteBuffer.putInt` and `putLong` write them.

use bytes::Bytes;
use campanile_core::{Coordinates, Headers, Timestamp, millis};

use super::{Header, Letter, put};

/// The prefix of all of Spring's dead-letter headers, including those about the deserialization of
/// the record key.
pub(super) const PREFIX: &str = "kafka_dlt-";

/// The values of `ConsumerRecord.timestamp()` and `TimestampType.NO_TIMESTAMP_TYPE`, for a record
/// without a timestamp.
const NO_TIMESTAMP: (i64, &str) = (-1, "NoTimestampType");

pub(super) fn add(letter: &Letter<'_>, headers: &mut Vec<Header>) {
    let (record, cause) = (letter.record, letter.cause);
    let origin = record.origin();
    let (millis, kind) = record.timestamp().map_or(NO_TIMESTAMP, timestamp);
    let class = Bytes::from(format!("campanile.{}", cause.kind.name()));
    let mut add = |name: &str, value: Bytes| put(headers, format!("{PREFIX}{name}"), value);
    add("exception-fqcn", class.clone());
    // Spring names the class of the root cause here. That class is unknown, and readers expect one.
    add("exception-cause-fqcn", class);
    add("exception-message", text(&cause.message));
    add("exception-stacktrace", text(&cause.trace));
    add("original-topic", text(&origin.topic));
    add("original-partition", number(&origin.partition.to_be_bytes()));
    add("original-offset", number(&origin.offset.to_be_bytes()));
    add("original-timestamp", number(&millis.to_be_bytes()));
    add("original-timestamp-type", text(kind));
    add("original-consumer-group", text(letter.group));
}

/// Reads the coordinates of the original record.
pub(super) fn origin(headers: &Headers) -> Option<Coordinates> {
    Some(Coordinates {
        topic: header(headers, "original-topic").and_then(as_text)?.into(),
        partition: i32::from_be_bytes(header(headers, "original-partition")?.try_into().ok()?),
        offset: original_i64(headers, "original-offset")?,
    })
}

/// Reads the message of the error.
pub(super) fn message(headers: &Headers) -> Option<&str> {
    header(headers, "exception-message").and_then(as_text)
}

/// Reads the timestamp of the original record.
pub(super) fn original_timestamp(headers: &Headers) -> Option<Timestamp> {
    let at = millis::time(original_i64(headers, "original-timestamp")?)?;
    match header(headers, "original-timestamp-type").and_then(as_text)? {
        "CreateTime" => Some(Timestamp::CreateTime(at)),
        "LogAppendTime" => Some(Timestamp::LogAppendTime(at)),
        _ => None,
    }
}

fn original_i64(headers: &Headers, name: &str) -> Option<i64> {
    Some(i64::from_be_bytes(header(headers, name)?.try_into().ok()?))
}

fn header<'h>(headers: &'h Headers, name: &str) -> Option<&'h [u8]> {
    headers.get(&format!("{PREFIX}{name}"))
}

fn as_text(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok()
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn number(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Converts a timestamp to milliseconds since the epoch and the name of its
/// `org.apache.kafka.common.record.TimestampType`.
fn timestamp(timestamp: Timestamp) -> (i64, &'static str) {
    match timestamp {
        Timestamp::CreateTime(at) => (millis::of(at), "CreateTime"),
        Timestamp::LogAppendTime(at) => (millis::of(at), "LogAppendTime"),
    }
}
