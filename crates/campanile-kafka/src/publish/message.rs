//! What is published.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use campanile_core::Timestamp;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::util::IntoOpaque;

use crate::millis;

/// A message for a topic, whose partition follows from its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) topic: Arc<str>,
    pub(crate) key: Option<Bytes>,
    pub(crate) payload: Option<Bytes>,
    /// `None`: the time of the publication.
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
}

impl Message {
    /// With what its delivery tells of it.
    pub(crate) fn record<O: IntoOpaque>(&self, opaque: O) -> BaseRecord<'_, [u8], [u8], O> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, opaque);
        record.key = self.key.as_deref();
        record.payload = self.payload.as_deref();
        record.timestamp = self.timestamp.and_then(tellable);
        record.headers = (!self.headers.is_empty()).then(|| self.headers());
        record
    }

    /// About how many bytes it keeps in memory.
    pub(crate) fn size(&self) -> usize {
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let header = |(name, value): &(String, _)| size_of_val(name) + name.len() + part(value);
        let headers: usize = self.headers.iter().map(header).sum();
        size_of::<Self>() + part(&self.key) + part(&self.payload) + headers
    }

    fn headers(&self) -> OwnedHeaders {
        let headers = OwnedHeaders::new_with_capacity(self.headers.len());
        self.headers.iter().fold(headers, |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_deref() })
        })
    }
}

/// Shows the topic only: the rest is a user's.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({})", self.topic)
    }
}

/// As Kafka counts. A time before 1970, and 1970 itself, cannot be told to a producer.
fn tellable(timestamp: Timestamp) -> Option<i64> {
    let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = timestamp;
    Some(millis::of(time)).filter(|&millis| millis > 0)
}
