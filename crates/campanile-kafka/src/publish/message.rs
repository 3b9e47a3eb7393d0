//! A message as librdkafka takes it.

use campanile_core::{Output, Timestamp, millis};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::util::IntoOpaque;

/// With what its delivery tells of it.
pub(crate) fn record<O: IntoOpaque>(output: &Output, opaque: O) -> BaseRecord<'_, [u8], [u8], O> {
    let mut record = BaseRecord::with_opaque_to(&output.topic, opaque);
    record.key = output.key.as_deref();
    record.payload = output.payload.as_deref();
    record.timestamp = output.timestamp.and_then(tellable);
    record.headers = (!output.headers.is_empty()).then(|| headers(output));
    record
}

fn headers(output: &Output) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(output.headers.len());
    output.headers.iter().fold(headers, |headers, (key, value)| {
        headers.insert(Header { key, value: value.as_deref() })
    })
}

/// As Kafka counts. A time before 1970, and 1970 itself, cannot be told to a producer.
fn tellable(timestamp: Timestamp) -> Option<i64> {
    let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = timestamp;
    Some(millis::of(time)).filter(|&millis| millis > 0)
}
