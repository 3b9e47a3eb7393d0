//! From librdkafka's message to a record of our own.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{Record, Timestamp};
use rdkafka::Message;
use rdkafka::message::BorrowedMessage;

use super::native;
use crate::slot::Slot;

/// Copies the message once.
///
/// A header's name that is not UTF-8 gets U+FFFD in the place of what is not: it is kept, it panics
/// nowhere, and it is no name that anybody asks for.
pub(super) fn record(slot: &Slot, message: &BorrowedMessage<'_>) -> Record {
    let mut record = Record::builder(slot.topic.clone(), slot.partition, message.offset());
    if let Some(key) = message.key() {
        record = record.key(Bytes::copy_from_slice(key));
    }
    if let Some(payload) = message.payload() {
        record = record.payload(Bytes::copy_from_slice(payload));
    }
    if let Some(timestamp) = timestamp(message.timestamp()) {
        record = record.timestamp(timestamp);
    }
    for (name, value) in native::headers(message) {
        let name = String::from_utf8_lossy(name);
        record = match value {
            Some(value) => record.header(name, Bytes::copy_from_slice(value)),
            None => record.null_header(name),
        };
    }
    record.build()
}

/// A time that the platform can tell; a producer can send any.
fn timestamp(timestamp: rdkafka::Timestamp) -> Option<Timestamp> {
    let at = |millis: i64| {
        let distance = Duration::from_millis(millis.unsigned_abs());
        if millis < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        }
    };
    match timestamp {
        rdkafka::Timestamp::NotAvailable => None,
        rdkafka::Timestamp::CreateTime(millis) => at(millis).map(Timestamp::CreateTime),
        rdkafka::Timestamp::LogAppendTime(millis) => at(millis).map(Timestamp::LogAppendTime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_timestamp_is_a_time_or_none() {
        let create = |millis| timestamp(rdkafka::Timestamp::CreateTime(millis));
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(create(1500), Some(Timestamp::CreateTime(epoch + Duration::from_millis(1500))));
        assert_eq!(create(-1500), Some(Timestamp::CreateTime(epoch - Duration::from_millis(1500))));
        assert_eq!(timestamp(rdkafka::Timestamp::NotAvailable), None);
        // It depends on the platform whether these can be told; neither panics.
        create(i64::MAX);
        create(i64::MIN);
    }
}
