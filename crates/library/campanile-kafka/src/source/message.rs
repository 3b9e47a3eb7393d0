//! Conversion of librdkafka's messages to records.

use bytes::Bytes;
use campanile_core::{Record, Timestamp, millis};
use campanile_driver::source::{Assignment, Received};

use crate::epilogue::OriginHeaders;
use crate::native::fetch_queues::Message;

/// Converts a message to a record, copying it once. A message of a retry topic becomes the record
/// that it is a copy of.
///
/// In a header name that is not UTF-8, U+FFFD replaces the invalid bytes. The header is kept and
/// causes no panic, and its name matches no name that is looked up.
pub(super) fn to_received(assignment: &Assignment, message: &Message<'_>) -> Received {
    let (topic, partition) = (assignment.topic.clone(), assignment.partition);
    let mut record = Record::builder(topic, partition, message.offset());
    let mut copy = MessageCopy::of(message);
    if let Some(key) = message.key() {
        record = record.key(copy.next(key));
    }
    if let Some(payload) = message.payload() {
        record = record.payload(copy.next(payload));
    }
    let mut origin = assignment.delay.map(|_| OriginHeaders::default());
    for (name, value) in message.headers() {
        let value = value.map(|value| copy.next(value));
        if origin.as_mut().is_some_and(|origin| origin.consume(name, value.as_deref())) {
            continue;
        }
        let name = String::from_utf8_lossy(name);
        record = match value {
            Some(value) => record.header(name, value),
            None => record.null_header(name),
        };
    }
    let origin_id = origin.as_mut().and_then(|origin| origin.topic_id.take());
    let parsed = origin.and_then(OriginHeaders::into_origin);
    let topic_id = match &parsed {
        Some(_) => origin_id,
        None => assignment.log_id().cloned(),
    };
    if let Some(id) = topic_id {
        record = record.topic_id(id);
    }
    let time = match &parsed {
        Some((_, time)) => *time,
        None => timestamp(message.timestamp()),
    };
    if let Some((origin, _)) = parsed {
        record = record.origin(origin);
    }
    if let Some(time) = time {
        record = record.timestamp(time);
    }
    let due = assignment.delay.and_then(|delay| {
        let published = message.timestamp().to_millis().and_then(millis::time);
        delay.due(published.unwrap_or_else(campanile_driver::private::now))
    });
    Received { assignment: assignment.id, record: record.build(), due }
}

/// A copy of the key, the payload and the header values, back to back. They share one allocation,
/// because another thread will free it.
struct MessageCopy(Bytes);

impl MessageCopy {
    fn of(message: &Message<'_>) -> Self {
        let values = || message.headers().filter_map(|(_, value)| value);
        let parts = || message.key().into_iter().chain(message.payload()).chain(values());
        let mut all = Vec::with_capacity(parts().map(<[u8]>::len).sum());
        parts().for_each(|part| all.extend_from_slice(part));
        Self(all.into())
    }

    /// Splits off the copy of the next part.
    fn next(&mut self, part: &[u8]) -> Bytes {
        self.0.split_to(part.len())
    }
}

/// Converts a timestamp, unless the platform cannot represent it: a producer can send any number.
pub(super) fn timestamp(timestamp: rdkafka::Timestamp) -> Option<Timestamp> {
    match timestamp {
        rdkafka::Timestamp::NotAvailable => None,
        rdkafka::Timestamp::CreateTime(at) => millis::time(at).map(Timestamp::CreateTime),
        rdkafka::Timestamp::LogAppendTime(at) => millis::time(at).map(Timestamp::LogAppendTime),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn any_timestamp_is_a_time_or_none() {
        let create = |millis| timestamp(rdkafka::Timestamp::CreateTime(millis));
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(create(1500), Some(Timestamp::CreateTime(epoch + Duration::from_millis(1500))));
        assert_eq!(create(-1500), Some(Timestamp::CreateTime(epoch - Duration::from_millis(1500))));
        assert_eq!(timestamp(rdkafka::Timestamp::NotAvailable), None);
    }
}
