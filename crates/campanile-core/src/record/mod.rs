//! Records from Kafka.

mod builder;
mod coordinates;
mod headers;
mod interrupt;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use bytes::Bytes;

pub use self::builder::RecordBuilder;
pub use self::coordinates::Coordinates;
pub use self::headers::Headers;
pub use self::interrupt::{Interrupt, LockReleased};
use self::turn::AttemptProgress;
pub use self::turn::{AwaitsTurn, Turn};

use crate::wakers::Wakers;

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
    interrupted: AtomicBool,
    progress: AttemptProgress,
    /// Whether the record has waited for the lock of another process.
    waited_elsewhere: AtomicBool,
    /// The number of [`Interrupt`]s.
    interrupts: AtomicUsize,
    wakers: Wakers,
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

    /// Starts an attempt at this record, possibly ahead of its turn. Called by the driver.
    #[doc(hidden)]
    pub fn start(&self, ahead: bool) {
        self.0.interrupted.store(false, Ordering::Release);
        self.0.progress.start(ahead);
    }

    /// Checks whether the record was started ahead of its turn and still waits for it.
    #[doc(hidden)]
    pub fn is_ahead(&self) -> bool {
        self.0.progress.is_ahead()
    }

    /// Checks whether the handler has succeeded and the store is about to record the completion.
    #[doc(hidden)]
    pub fn is_recording(&self) -> bool {
        self.0.progress.is_recording()
    }

    /// Checks whether the record may take long: its handler is running, it waits for its lock, or a
    /// layer has returned an error, after which middleware may call the layer again.
    #[doc(hidden)]
    pub fn is_processing(&self) -> bool {
        self.0.progress.is_processing()
    }

    /// Marks the record as processing. Called by the layer.
    #[doc(hidden)]
    pub fn set_processing(&self) {
        self.0.progress.set_processing();
    }

    /// Checks whether the record was answered as a duplicate, without running the handler.
    #[doc(hidden)]
    pub fn is_duplicate(&self) -> bool {
        self.0.progress.is_duplicate()
    }

    /// Checks whether the record is a duplicate, if it is ahead of its turn and the layer waits for that.
    #[doc(hidden)]
    pub fn is_duplicate_ahead(&self) -> Option<bool> {
        self.0.progress.is_duplicate_ahead()
    }

    /// Creates a future that resolves when the layer waits for the record's turn.
    #[doc(hidden)]
    pub fn awaits_turn(&self) -> AwaitsTurn {
        AwaitsTurn::new(self.clone())
    }

    /// Begins the record's turn. Called by the driver.
    #[doc(hidden)]
    pub fn begin_turn(&self) {
        if self.is_ahead() {
            self.0.progress.start(false);
            self.0.wakers.wake_all();
        }
    }

    /// Marks any later drop of this record's future as an interruption and not a failure. The
    /// driver calls this before it drops the future on a revoke or shutdown.
    #[doc(hidden)]
    pub fn set_interrupted(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        self.0.wakers.wake_all();
    }

    fn is_interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::Acquire)
    }

    /// The layer observes interruptions through this handle.
    #[doc(hidden)]
    pub fn interrupt(&self) -> Interrupt {
        Interrupt::new(self.clone())
    }

    /// Notes that another process holds the lock of the record's key. Called by the layer.
    #[doc(hidden)]
    pub fn set_waited_elsewhere(&self) {
        self.0.waited_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Checks whether an attempt at this record has found its lock held by another process.
    #[doc(hidden)]
    pub fn has_waited_elsewhere(&self) -> bool {
        self.0.waited_elsewhere.load(Ordering::Relaxed)
    }

    /// Creates a future that resolves when the record's lock is released. The driver awaits it
    /// after it has dropped the record's future.
    #[doc(hidden)]
    pub fn lock_released(&self) -> LockReleased {
        LockReleased::new(self.clone())
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
