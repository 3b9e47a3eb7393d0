//! What came from Kafka.

mod builder;
mod coordinates;
mod headers;
mod interrupt;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

pub use self::builder::RecordBuilder;
pub use self::coordinates::Coordinates;
pub use self::headers::Headers;
pub use self::interrupt::{Interrupt, LetGo};
use self::turn::Progress;
pub use self::turn::Turn;

use crate::wakers::Wakers;

/// One record of Kafka: owned, immutable, and cheap to clone (one reference count).
///
/// Of one that the driver has received, key, payload and header values share an allocation: who keeps
/// one of them for long keeps the memory of all; `Bytes::copy_from_slice` lets go of the rest.
///
/// `Debug` prints the coordinates only.
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
    /// `None` for one that is no copy.
    origin: Option<Coordinates>,
    timestamp: Option<Timestamp>,
    key: Option<Bytes>,
    payload: Option<Bytes>,
    headers: Headers,
    interrupted: AtomicBool,
    progress: Progress,
    /// For how long its entry is kept, in seconds; 0 where nobody has said so.
    entry_kept: AtomicU32,
    /// How many [`Interrupt`]s there are.
    interrupts: AtomicUsize,
    wakers: Wakers,
}

impl Record {
    /// Starts a record at these coordinates.
    pub fn builder(topic: impl Into<Arc<str>>, partition: i32, offset: i64) -> RecordBuilder {
        RecordBuilder::new(Coordinates { topic: topic.into(), partition, offset })
    }

    /// Topic, partition and offset.
    pub fn coordinates(&self) -> &Coordinates {
        &self.0.coordinates
    }

    /// Where the record stood first: the same as [`coordinates`](Self::coordinates), but for a copy
    /// that the driver has read from one of its own retry topics. It says which record it is; the
    /// coordinates say where this copy stands.
    pub fn origin(&self) -> &Coordinates {
        self.0.origin.as_ref().unwrap_or(&self.0.coordinates)
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.0.coordinates.topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.0.coordinates.partition
    }

    /// The offset in the partition.
    pub fn offset(&self) -> i64 {
        self.0.coordinates.offset
    }

    /// When it was made or appended, if the broker says so.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.0.timestamp
    }

    /// The record's key: what Kafka partitions and compacts by. Seldom an idempotency key; see
    /// [`key`](crate::key).
    pub fn key(&self) -> Option<&Bytes> {
        self.0.key.as_ref()
    }

    /// The payload. `None` is a tombstone, `Some` of no bytes is not.
    pub fn payload(&self) -> Option<&Bytes> {
        self.0.payload.as_ref()
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// About how many bytes it keeps in memory, for budgets: payload, key, headers, and itself.
    pub fn size(&self) -> usize {
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        size_of::<Inner>() + part(&self.0.key) + part(&self.0.payload) + self.0.headers.size()
    }

    /// How the driver starts an attempt at this record, or starts it ahead of its turn.
    #[doc(hidden)]
    pub fn start(&self, ahead: bool) {
        self.0.interrupted.store(false, Ordering::Release);
        self.0.progress.start(ahead);
    }

    /// Whether it was started ahead of its turn, which has not come.
    #[doc(hidden)]
    pub fn is_ahead(&self) -> bool {
        self.0.progress.is_ahead()
    }

    /// Whether its handler has succeeded, and the store is about to record that.
    #[doc(hidden)]
    pub fn is_recording(&self) -> bool {
        self.0.progress.is_recording()
    }

    /// Whether a layer has answered it with an error, after which it may be called again.
    #[doc(hidden)]
    pub fn has_failed(&self) -> bool {
        self.0.progress.has_failed()
    }

    /// How the layer says so.
    #[doc(hidden)]
    pub fn set_failed(&self) {
        self.0.progress.set_failed();
    }

    /// Whether it was answered as a duplicate, which needs no handler.
    #[doc(hidden)]
    pub fn is_duplicate(&self) -> bool {
        self.0.progress.is_duplicate()
    }

    /// How the driver says that its turn has come.
    #[doc(hidden)]
    pub fn begin_turn(&self) {
        if self.is_ahead() {
            self.0.progress.start(false);
            self.0.wakers.wake_all();
        }
    }

    /// From now on, a drop of this record's future is an interruption and no failure. The driver
    /// says so before a revoke or a shutdown lets go of it.
    #[doc(hidden)]
    pub fn set_interrupted(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        self.0.wakers.wake_all();
    }

    fn is_interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::Acquire)
    }

    /// How the layer sees that.
    #[doc(hidden)]
    pub fn interrupt(&self) -> Interrupt {
        Interrupt::new(self.clone())
    }

    /// For how long the entry of its key is kept once it is COMPLETED, if a layer has said so.
    #[doc(hidden)]
    pub fn entry_kept(&self) -> Option<Duration> {
        let seconds = self.0.entry_kept.load(Ordering::Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// How the driver waits, after it has dropped the record's future, until the lock is let go.
    #[doc(hidden)]
    pub fn let_go(&self) -> LetGo {
        LetGo::new(self.clone())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({})", self.0.coordinates)
    }
}

/// A record's time, with who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamp {
    /// The producer.
    CreateTime(SystemTime),
    /// The broker, when it appended the record.
    LogAppendTime(SystemTime),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_its_own_origin_unless_it_is_a_copy() {
        let record = Record::builder("payments", 3, 42).build();
        assert_eq!(record.origin(), record.coordinates());
        let copy = Record::builder("payments.retry", 0, 7).origin(record.coordinates().clone());
        let copy = copy.build();
        assert_eq!(copy.origin().to_string(), "payments/3@42");
        assert_eq!(copy.coordinates().to_string(), "payments.retry/0@7");
    }
}
