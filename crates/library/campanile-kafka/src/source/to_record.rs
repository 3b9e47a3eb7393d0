//! Records for applications with a consumer loop of their own.

use std::sync::Arc;

use bytes::Bytes;
use campanile_core::Record;
use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, OwnedMessage};

use super::message::timestamp;
use crate::native;

/// Converts a message of rdkafka to a [`Record`], for a consumer loop of your own around the layer.
///
/// ```
/// use campanile_kafka::ToRecord;
/// use rdkafka::message::OwnedMessage;
/// use rdkafka::Timestamp;
///
/// let payload = Some(b"{}".to_vec());
/// let message =
///     OwnedMessage::new(payload, None, "payments".into(), Timestamp::NotAvailable, 3, 42, None);
/// assert_eq!(message.to_record().coordinates().to_string(), "payments/3@42");
/// ```
///
/// The message is copied once, as in the driver. Null and empty values stay different. In a header
/// name that is not UTF-8 (on which rdkafka's own accessors panic), U+FFFD replaces the invalid
/// bytes. A copy from one of the driver's [retry topics](crate::RetryTopics) becomes a record of
/// its own; its headers contain the coordinates of the original record.
pub trait ToRecord: sealed::Sealed {
    /// Converts the message to a record without the [id of its topic](Record::topic_id).
    fn to_record(&self) -> Record {
        self.to_record_of(None)
    }

    /// Converts the message to a record of the topic with this id.
    fn to_record_of(&self, topic_id: Option<&Arc<str>>) -> Record;
}

impl ToRecord for BorrowedMessage<'_> {
    fn to_record_of(&self, topic_id: Option<&Arc<str>>) -> Record {
        record(self, topic_id, native::headers(self))
    }
}

impl ToRecord for OwnedMessage {
    fn to_record_of(&self, topic_id: Option<&Arc<str>>) -> Record {
        record(self, topic_id, native::owned_headers(self))
    }
}

fn record<'m>(
    message: &impl Message,
    topic_id: Option<&Arc<str>>,
    headers: impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)>,
) -> Record {
    let mut record = Record::builder(message.topic(), message.partition(), message.offset());
    if let Some(id) = topic_id {
        record = record.topic_id(id.clone());
    }
    if let Some(key) = message.key() {
        record = record.key(Bytes::copy_from_slice(key));
    }
    if let Some(payload) = message.payload() {
        record = record.payload(Bytes::copy_from_slice(payload));
    }
    if let Some(time) = timestamp(message.timestamp()) {
        record = record.timestamp(time);
    }
    for (name, value) in headers {
        let name = String::from_utf8_lossy(name);
        record = match value {
            Some(value) => record.header(name, Bytes::copy_from_slice(value)),
            None => record.null_header(name),
        };
    }
    record.build()
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for rdkafka::message::BorrowedMessage<'_> {}
    impl Sealed for rdkafka::message::OwnedMessage {}
}
