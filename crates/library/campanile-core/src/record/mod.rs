//! Records from Kafka.

mod attempt;
mod builder;
mod coordinates;
mod headers;
mod interrupt;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

pub use self::attempt::Attempt;
use self::attempt::AttemptState;
pub use self::builder::RecordBuilder;
pub use self::coordinates::Coordinates;
pub use self::headers::Headers;
pub use self::interrupt::{Interrupt, LockReleased};
pub use self::turn::{AwaitsTurn, Turn};

/// A Kafka record: owned, immutable, and cheap to clone (one reference count).
///
/// The key, payload and header values of a record from the driver share one allocation, which is
/// freed only when all of them are dropped. To keep one of them for a long time, copy it
/// with `Bytes::copy_from_slice`.
///
/// `Debug` prints only the coordinates.
///
/// ```
/// use campanile_core::Record;
///
/// let record = Record::builder("payments", 3, 42)
///     .key("account-7")
///     .payload(r#"{"cents":100}"#)
///     .header("idempotency-key", "p-1")
///     .build();
/// assert_eq!(record.coordinates().to_string(), "payments/3@42");
/// ```
#[derive(Clone)]
pub struct Record(Arc<Inner>);

struct Inner {
    coordinates: Coordinates,
    /// `None` unless this record is a copy.
    origin: Option<Coordinates>,
    topic_id: Option<Arc<str>>,
    timestamp: Option<Timestamp>,
    key: Option<Bytes>,
    payload: Option<Bytes>,
    headers: Headers,
    attempt: AttemptState,
}

impl Record {
    /// Creates a builder for a record at these coordinates.
    pub fn builder(topic: impl Into<Arc<str>>, partition: i32, offset: i64) -> RecordBuilder {
        RecordBuilder::new(Coordinates { topic: topic.into(), partition, offset })
    }

    /// Returns the topic, partition and offset.
    pub fn coordinates(&self) -> &Coordinates {
        &self.0.coordinates
    }

    /// Returns the coordinates of the original record.
    ///
    /// These are the same as [`coordinates`](Self::coordinates), except for a copy that the driver
    /// has read from one of its own retry topics. The origin identifies the record; the coordinates
    /// locate this copy.
    pub fn origin(&self) -> &Coordinates {
        self.0.origin.as_ref().unwrap_or(&self.0.coordinates)
    }

    /// Returns the id that the brokers gave to the topic of the [origin](Self::origin) when it was created, as
    /// Kafka's tools print it. A topic that is deleted and recreated, and a topic of another cluster, has
    /// another id. `None` for a record that is not from the driver, and with brokers before Kafka 2.8.
    pub fn topic_id(&self) -> Option<&Arc<str>> {
        self.0.topic_id.as_ref()
    }

    /// Returns the name of the topic.
    pub fn topic(&self) -> &str {
        &self.0.coordinates.topic
    }

    /// Returns the number of the partition.
    pub fn partition(&self) -> i32 {
        self.0.coordinates.partition
    }

    /// Returns the offset in the partition.
    pub fn offset(&self) -> i64 {
        self.0.coordinates.offset
    }

    /// Returns when the record was created or appended, if the broker provides it.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.0.timestamp
    }

    /// Returns the record's key, which Kafka uses for partitioning and compaction. It is rarely an
    /// idempotency key; see [`key`](crate::key).
    pub fn key(&self) -> Option<&Bytes> {
        self.0.key.as_ref()
    }

    /// Returns the payload, or `None` for a tombstone. A record with an empty payload is not a
    /// tombstone.
    pub fn payload(&self) -> Option<&Bytes> {
        self.0.payload.as_ref()
    }

    /// Returns the headers.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// Estimates the memory usage in bytes, for budgets: payload, key, headers, and the record
    /// itself.
    pub fn size(&self) -> usize {
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        size_of::<Inner>() + part(&self.0.key) + part(&self.0.payload) + self.0.headers.size()
    }

    /// Returns the state of the driver's attempt at this record. Not part of the public contract.
    #[doc(hidden)]
    pub fn attempt(&self) -> Attempt<'_> {
        Attempt::new(self)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({})", self.0.coordinates)
    }
}

/// The timestamp of a record, with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamp {
    /// Set by the producer.
    CreateTime(SystemTime),
    /// Set by the broker, when it appended the record.
    LogAppendTime(SystemTime),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_differs_from_coordinates_only_for_copy() {
        let record = Record::builder("payments", 3, 42).build();
        assert_eq!(record.origin(), record.coordinates());
        let copy = Record::builder("payments.retry", 0, 7).origin(record.coordinates().clone());
        let copy = copy.build();
        assert_eq!(copy.origin().to_string(), "payments/3@42");
        assert_eq!(copy.coordinates().to_string(), "payments.retry/0@7");
    }
}
