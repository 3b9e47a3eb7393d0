//! Seeks: changes of the position of an assigned partition.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::BoxError;
use tokio::sync::oneshot;

/// The record from which a partition is processed after [`Handle::seek`](crate::Handle::seek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The record with this offset, or the next one if compaction has removed it. The offset must be one
    /// between the partition's first record and its end, inclusive.
    Offset(i64),
    /// The first record with a timestamp at or after this time, in milliseconds. If there is none, the
    /// partition's end.
    Time(SystemTime),
    /// The first record of the partition.
    Beginning,
    /// The end of the partition, as of the call: only later records are processed, and those of
    /// transactions that are still open.
    End,
}

/// Why [`Handle::seek`](crate::Handle::seek) failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum SeekError {
    /// The partition is not assigned to this consumer, or was revoked during the seek.
    NotAssigned,
    /// Another seek of the partition is in progress.
    InProgress,
    /// The offset is not in the partition.
    OutOfRange {
        /// The partition's first offset.
        first: i64,
        /// The offset after the partition's last record.
        end: i64,
    },
    /// The consumer commits in transactions, in which seeks are not supported.
    Transactional,
    /// The brokers did not answer, or refused to return offsets.
    Kafka(BoxError),
    /// The consumer is shutting down, or has ended.
    ShuttingDown,
}

impl fmt::Display for SeekError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAssigned => f.write_str("the partition is not assigned to this consumer"),
            Self::InProgress => f.write_str("another seek of the partition is in progress"),
            Self::OutOfRange { first, end } => {
                write!(f, "the offset is not in the partition, which has {first} to {end}")
            }
            Self::Transactional => {
                f.write_str("a consumer that commits in transactions does not support seeks")
            }
            Self::Kafka(_) => f.write_str("failed to look up the partition's offsets"),
            Self::ShuttingDown => f.write_str("the consumer is shutting down"),
        }
    }
}

impl Error for SeekError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Kafka(error) => Some(&**error),
            _ => None,
        }
    }
}

/// A seek that the driver has not started yet. If it is dropped, the consumer is shutting down.
pub(crate) struct SeekRequest {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) to: SeekTo,
    pub(crate) reply: oneshot::Sender<Result<i64, SeekError>>,
}
