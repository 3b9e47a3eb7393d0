//! Where records come from and where offsets are committed.

use std::sync::Arc;
use std::task::Context;
use std::time::SystemTime;

use campanile_core::Record;

use super::assignment::{Assignment, AssignmentId};
use super::budget::Amount;
use crate::error::ConsumerError;

/// A member of a consumer group: librdkafka's consumer, or a simulated one.
///
/// No method blocks for long; what takes time ends with an [`Event`].
pub(crate) trait Source {
    /// Appends what has happened since the last call, with records of about `room` at most; none if
    /// `room` is `None`. Returns whether there was anything.
    ///
    /// The context's waker is woken when there is more.
    fn poll(&mut self, cx: &mut Context<'_>, room: Option<Amount>, events: &mut Vec<Event>)
    -> bool;

    /// Stops fetching from these partitions.
    fn pause(&mut self, partitions: &[Arc<Assignment>]);

    /// Fetches from these partitions again.
    fn resume(&mut self, partitions: &[Arc<Assignment>]);

    /// Starts to commit what is finished of these partitions. Returns whether a commit is in flight
    /// now; it ends with [`Event::Committed`], and the next one is started only after that.
    fn commit(&mut self, partitions: &[Arc<Assignment>]) -> bool;

    /// Gives up the partitions of the last [`Event::Revoked`], which are drained and committed.
    fn release(&mut self);

    /// Updates each partition's end offset.
    fn update_extents(&mut self, partitions: &[Arc<Assignment>]);

    /// Leaves the group. It ends with [`Event::Closed`].
    fn close(&mut self);
}

/// What a source reports.
pub(crate) enum Event {
    /// The group has assigned these partitions, possibly none.
    Assigned(Vec<Arc<Assignment>>),
    /// Records, in order within each partition.
    Records(Vec<Received>),
    /// These partitions are taken away, or are lost already. They are kept until
    /// [`Source::release`].
    Revoked { partitions: Vec<Arc<Assignment>>, lost: bool },
    /// The commit in flight has ended.
    Committed(CommitEnd),
    /// Nothing more will come.
    Failed(ConsumerError),
    /// The group was left.
    Closed,
}

/// How a commit has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitEnd {
    /// The brokers have acknowledged it.
    Acknowledged,
    /// It failed, and may succeed if it is repeated.
    Failed,
    /// It failed for good, as after a rebalance.
    Refused,
}

/// A record, and the assignment that it was received in.
pub(crate) struct Received {
    pub(crate) assignment: AssignmentId,
    pub(crate) record: Record,
    /// When it is due, if it comes from a retry topic.
    pub(crate) due: Option<SystemTime>,
}
