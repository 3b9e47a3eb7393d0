//! What is published.

use std::sync::Arc;

use bytes::Bytes;
use campanile_core::Timestamp;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;

use super::context::Waiting;
use crate::millis;

/// A message for a topic, whose partition follows from its key.
pub(crate) struct Message {
    pub(crate) topic: Arc<str>,
    pub(crate) key: Option<Bytes>,
    pub(crate) payload: Option<Bytes>,
    /// `None`: the time of the publication.
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
}

impl Message {
    pub(super) fn record(&self, waiting: Box<Waiting>) -> BaseRecord<'_, [u8], [u8], Box<Waiting>> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, waiting);
        record.key = self.key.as_deref();
        record.payload = self.payload.as_deref();
        record.timestamp = self.timestamp.and_then(tellable);
        record.headers = (!self.headers.is_empty()).then(|| self.headers());
        record
    }

    fn headers(&self) -> OwnedHeaders {
        let headers = OwnedHeaders::new_with_capacity(self.headers.len());
        self.headers.iter().fold(headers, |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_deref() })
        })
    }
}

/// As Kafka counts. A time before 1970, and 1970 itself, cannot be told to a producer.
fn tellable(timestamp: Timestamp) -> Option<i64> {
    let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = timestamp;
    Some(millis::of(time)).filter(|&millis| millis > 0)
}
