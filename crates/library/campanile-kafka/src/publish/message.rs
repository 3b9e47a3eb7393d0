//! Conversion of messages into librdkafka's records.

use campanile_core::{Output, Timestamp, millis};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::util::IntoOpaque;

/// Converts a message. The callback about its delivery gets `opaque`.
pub(crate) fn record<O: IntoOpaque>(output: &Output, opaque: O) -> BaseRecord<'_, [u8], [u8], O> {
    let mut record = BaseRecord::with_opaque_to(&output.topic, opaque);
    record.key = output.key.as_deref();
    record.payload = output.payload.as_deref();
    record.timestamp = output.timestamp.and_then(producer_millis);
    record.headers = (!output.headers.is_empty()).then(|| headers(output));
    record
}

fn headers(output: &Output) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(output.headers.len());
    output.headers.iter().fold(headers, |headers, (key, value)| {
        headers.insert(Header { key, value: value.as_deref() })
    })
}

/// Converts a timestamp to milliseconds since 1970. A producer accepts neither the start of 1970 itself
/// nor an earlier time.
fn producer_millis(timestamp: Timestamp) -> Option<i64> {
    let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = timestamp;
    Some(millis::of(time)).filter(|&millis| millis > 0)
}
