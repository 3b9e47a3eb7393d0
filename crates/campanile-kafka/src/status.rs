//! How a consumer does.

use std::sync::Arc;
use std::time::Duration;

/// How far a consumer is in its life, and what it has of each partition that is assigned to it. Given
/// by [`Handle::status`](crate::Handle::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// How far it is.
    pub stage: Stage,
    /// The partitions that are assigned, by topic and number. None before the first rebalance and
    /// after the end.
    pub partitions: Vec<PartitionStatus>,
}

/// How far a consumer is in its life. It goes on in this order, and may leave some out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It is not awaited yet, or waits for its brokers and topics.
    Starting,
    /// It has subscribed, and serves what is assigned.
    Serving,
    /// It begins nothing more, and waits for what is at work.
    Draining,
    /// It commits, and leaves its group.
    Closing,
    /// It has ended, or was dropped.
    Ended,
}

impl Stage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Starting, Self::Serving, Self::Draining, Self::Closing, Self::Ended];
}

/// What a consumer has of one partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The partition's topic.
    pub topic: Arc<str>,
    /// Its number.
    pub partition: i32,
    /// Everything below this offset is finished; it is what is committed, within a fraction of a
    /// second if the brokers answer. `None` until a record of this assignment is finished; with an
    /// `auto.offset.reset` of `latest`, until one has come.
    pub mark: Option<i64>,
    /// How many offsets there are from [`mark`](Self::mark), or else from the first record of this
    /// assignment, to the partition's end: those of unfinished records, and of what takes up offsets
    /// without being a record (what compaction has removed, transaction markers).
    ///
    /// The end is the one that came with the last fetch, looked at once a second: of a partition that
    /// is not being fetched, since it is paused or enough of it is prefetched, it stays as it was,
    /// and the true lag may be more. `None` until the first record of this assignment has come: what
    /// was committed before is not known here.
    pub lag: Option<u64>,
    /// How many of its records are in memory: read, and not finished.
    pub held: u64,
    /// For how long its oldest unfinished record has been that: at work, waiting for another attempt,
    /// or for its turn. What is behind it is not committed. Looked at once a second, so `None` also
    /// where records come and go more quickly.
    pub oldest: Option<Duration>,
}
