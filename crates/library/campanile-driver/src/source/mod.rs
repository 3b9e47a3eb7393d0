//! The interface to the source of records, which also commits offsets.

mod assignment;
mod delay;
mod lag;
mod log_change;
mod offset;
mod sink;
mod usage;

use std::sync::Arc;
use std::task::Context;
use std::time::SystemTime;

use campanile_core::Record;
use futures_util::future::BoxFuture;

pub use self::assignment::{Assignment, AssignmentId};
pub use self::delay::Delay;
pub use self::lag::OffsetRange;
pub use self::log_change::{LogChange, LogChanged};
pub use self::sink::{Item, ItemResult, Sink};
pub use self::usage::{Amount, Usage};
use crate::error::ConsumerError;
use crate::seek::{SeekError, SeekTo};

/// A member of a consumer group: librdkafka's consumer, or a simulated one.
///
/// No method blocks for long. An operation that takes time ends with an [`Event`].
pub trait Source {
    /// Appends the events since the last call, with records of up to about `room`, or none if
    /// `room` is `None`. Returns whether it made progress.
    ///
    /// The context's waker is woken when there is more.
    fn poll(&mut self, cx: &mut Context<'_>, room: Option<Amount>, events: &mut Vec<Event>)
    -> bool;

    /// Stops fetching from these partitions.
    fn pause(&mut self, partitions: &[Arc<Assignment>]);

    /// Resumes fetching from these partitions.
    fn resume(&mut self, partitions: &[Arc<Assignment>]);

    /// Looks up the offset that a seek of this partition goes to.
    fn look_up(
        &mut self,
        partition: &Arc<Assignment>,
        to: SeekTo,
    ) -> BoxFuture<'static, Result<SeekTarget, SeekError>>;

    /// Moves the position of this partition, which is paused, and resumes it. This ends with
    /// [`Event::Sought`], or with [`Event::Revoked`] if the partition is revoked before.
    fn seek(&mut self, partition: &Arc<Assignment>, offset: i64);

    /// Starts to commit the watermarks of these partitions, unless their logs were replaced.
    fn commit(&mut self, partitions: &[Arc<Assignment>]) -> CommitStart;

    /// Releases the partitions of the last [`Event::Revoked`], after they were drained and
    /// committed.
    fn release(&mut self);

    /// Called once a second, with all assigned partitions: updates the end of each partition's log, from which its
    /// lag is computed, restores a lost connection, and checks that the logs are the same.
    fn tick(&mut self, partitions: &[Arc<Assignment>]);

    /// Leaves the group. This ends with [`Event::Closed`].
    fn close(&mut self);
}

/// An event that a source reports.
#[derive(Debug)]
pub enum Event {
    /// The group has assigned these partitions. The list may be empty.
    Assigned(Vec<Arc<Assignment>>),
    /// Records, in order within each partition.
    Records(Vec<Received>),
    /// These partitions are revoked, or already lost. The source keeps them until
    /// [`Source::release`] is called. While they are drained, the same may follow once more as lost.
    Revoked {
        /// The partitions.
        partitions: Vec<Arc<Assignment>>,
        /// Whether another member may have them already, so that nothing is committed any more.
        lost: bool,
    },
    /// The log of a partition has lost records, or is another log. If it is another one,
    /// [`Event::Revoked`] and [`Event::Assigned`] follow.
    LogChanged(LogChange),
    /// The position of a partition was moved. Its records now arrive in the new assignment.
    Sought {
        /// The assignment that ends.
        old: Arc<Assignment>,
        /// The one that replaces it.
        new: Arc<Assignment>,
    },
    /// The commit in flight has ended.
    Committed(CommitResult),
    /// The source has failed, and the consumer stops.
    Failed(ConsumerError),
    /// The source has left the group.
    Closed,
}

/// Whether a commit was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStart {
    /// The commit is in flight. It ends with [`Event::Committed`], and the next commit is started
    /// only after that.
    Started,
    /// The commit cannot be started now, but may be later.
    NotNow,
    /// No commit will be started any more, because the source has failed.
    Never,
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// The brokers acknowledged the commit.
    Acknowledged,
    /// The commit failed, and may succeed if it is repeated.
    Failed,
    /// The commit failed permanently, for example after a rebalance.
    Refused,
}

/// A record, and the assignment in which it was received.
#[derive(Debug)]
pub struct Received {
    /// The assignment.
    pub assignment: AssignmentId,
    /// The record.
    pub record: Record,
    /// The time at which the record is due, if its partition has a delay.
    pub due: Option<SystemTime>,
}

/// The offset that a seek goes to.
#[derive(Clone, Copy, Debug)]
pub struct SeekTarget {
    /// The offset.
    pub offset: i64,
    /// The group's committed offset at the time of the lookup, or the partition's first offset.
    pub committed: i64,
}
