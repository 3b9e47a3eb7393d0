//! The status of a consumer.

use std::sync::Arc;
use std::time::Duration;

use crate::summary::Summary;

/// The stage of a consumer, and its progress in each partition that is assigned to it. Returned by
/// [`Handle::status`](crate::Handle::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The current stage.
    pub stage: ConsumerStage,
    /// The assigned partitions, sorted by topic and number. Empty before the first rebalance and
    /// after the end.
    pub partitions: Vec<PartitionStatus>,
    /// The dependencies that handlers have reported as [unavailable](campanile_core::error::unavailable), and that
    /// records wait for. Updated once a second.
    pub unavailable: Vec<UnavailableDependency>,
    /// The number of records by outcome since the start of serving, of all partitions that were
    /// assigned since. After the end, this is the result of serving.
    pub summary: Summary,
}

/// A stage in the life of a consumer. A consumer passes through the stages in this order, and may
/// skip some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ConsumerStage {
    /// The consumer is not awaited yet, or waits for its brokers, its topics, or a place in its group.
    Starting,
    /// The consumer has subscribed, and serves the partitions that are assigned.
    Serving,
    /// The consumer starts no more records, and waits for those in flight.
    Draining,
    /// The consumer commits, and leaves its group.
    Closing,
    /// Serving has ended, or its future was dropped.
    Ended,
}

impl ConsumerStage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Starting, Self::Serving, Self::Draining, Self::Closing, Self::Ended];
}

/// The progress of a consumer in one partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The partition's topic.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
    /// The partition's watermark: every record below this offset is finished. The watermark is
    /// committed within a fraction of a second if the brokers answer. `None` until a record of this
    /// assignment is finished or, with an `auto.offset.reset` of `latest`, until a record is
    /// received.
    pub watermark: Option<i64>,
    /// The number of offsets from [`mark`](Self::watermark), or else from the first record of this
    /// assignment, to the partition's end. It includes the offsets of unfinished records, and those
    /// that have no record (removed by compaction, or used by transaction markers).
    ///
    /// The end is the one reported by the last fetch, and is updated once a second. While a
    /// partition is not fetched, because it is paused or enough of it is prefetched, the end does
    /// not change, and the true lag may be larger. `None` until the first record of this assignment
    /// is received: what was committed before is not known here.
    pub lag: Option<u64>,
    /// The number of the partition's records in memory: read, and not finished.
    pub buffered: u64,
    /// How long the oldest unfinished record has been the oldest: in flight, or waiting for another
    /// attempt or for its turn. Nothing behind that record is committed. Updated once a second, so
    /// this is also `None` if records come and go faster than that. `None` while the partition is
    /// [stopped](Self::stopped), or its oldest record waits for the delay of its
    /// retry topic: the age of such a record counts from when it is due.
    pub oldest_age: Option<Duration>,
    /// The record at which the partition is stopped, with
    /// `OnGiveUp::StopPartition`. `None` if it is not stopped.
    pub stopped: Option<StoppedPartition>,
    /// Whether the partition or its topic is paused by
    /// [`Handle::pause_partition`](crate::Handle::pause_partition) or
    /// [`Handle::pause_topic`](crate::Handle::pause_topic). A pause of the whole consumer is reported by
    /// [`Handle::paused`](crate::Handle::paused) instead.
    pub paused: bool,
    /// The number of records by outcome since the start of serving, including those of earlier
    /// assignments of the partition to this consumer.
    pub summary: Summary,
}

/// A dependency of handlers that is unavailable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnavailableDependency {
    /// Its name, if the errors name it.
    pub dependency: Option<&'static str>,
    /// How long ago it was first reported.
    pub elapsed: Duration,
    /// The number of records that have failed for it and wait. Records behind them wait as well.
    pub waiting: usize,
    /// The text of the last error.
    pub error: Arc<str>,
}

/// The record at which a partition is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoppedPartition {
    /// The offset of the first record that was given up.
    pub offset: i64,
    /// How long ago the partition was stopped.
    pub elapsed: Duration,
}
