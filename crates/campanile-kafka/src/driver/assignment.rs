//! One assignment of one partition: what the source, the scheduler and status share of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::budget::Usage;
use super::extent::Extent;
use crate::retry_topics::Rung;
use crate::transaction::{Outbox, Pending};

/// No offset.
const NONE: i64 = -1;

/// The epoch of an assignment. A partition that is revoked and assigned again gets another one, so
/// that a late completion of the old one finds nothing to complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AssignmentId(pub(crate) u64);

/// One assignment of one partition.
pub(crate) struct Assignment {
    pub(crate) id: AssignmentId,
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    /// The retry topic, if the partition belongs to one.
    pub(crate) rung: Option<Rung>,
    /// What is in memory of this partition.
    pub(crate) usage: Arc<Usage>,
    /// What is in memory of all partitions.
    pub(crate) total: Arc<Usage>,
    pub(crate) extent: Extent,
    /// Outputs that wait for a transaction.
    pub(crate) outbox: Outbox,
    watermark: AtomicI64,
    committed: AtomicI64,
    revoked: AtomicBool,
    stopped: AtomicBool,
}

impl Assignment {
    pub(crate) fn new(
        id: AssignmentId,
        topic: Arc<str>,
        partition: i32,
        rung: Option<Rung>,
        total: Arc<Usage>,
    ) -> Self {
        Self {
            id,
            topic,
            partition,
            rung,
            usage: Arc::default(),
            total,
            extent: Extent::new(),
            outbox: Outbox::default(),
            watermark: AtomicI64::new(NONE),
            committed: AtomicI64::new(NONE),
            revoked: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns the offset to commit: everything below it is finished, or was never to be read. `None`
    /// while there is nothing to commit.
    pub(crate) fn watermark(&self) -> Option<i64> {
        some(&self.watermark)
    }

    /// Moves the watermark past the records that have produced these outputs.
    pub(crate) fn advance(&self, watermark: i64, pending: impl ExactSizeIterator<Item = Pending>) {
        if pending.len() == 0 {
            self.set_watermark(watermark);
        } else {
            self.outbox.put(pending, || self.set_watermark(watermark));
        }
    }

    fn set_watermark(&self, offset: i64) {
        self.watermark.store(offset, Ordering::Release);
    }

    /// Resets the watermark: the partition's position has moved, and nothing is finished there.
    pub(crate) fn clear_watermark(&self) {
        self.watermark.store(NONE, Ordering::Release);
    }

    /// Returns the offset that the brokers have acknowledged last.
    pub(crate) fn committed(&self) -> Option<i64> {
        some(&self.committed)
    }

    /// Records what the brokers have acknowledged.
    pub(crate) fn set_committed(&self, offset: i64) {
        self.committed.store(offset, Ordering::Release);
    }

    /// Returns the watermark, if it is not committed.
    pub(crate) fn uncommitted(&self) -> Option<i64> {
        self.watermark().filter(|watermark| Some(*watermark) != self.committed())
    }

    /// Returns whether the partition was revoked since.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Marks the partition as revoked.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// Returns whether no further record of it may be started.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Starts no further record of it.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

fn some(offset: &AtomicI64) -> Option<i64> {
    let offset = offset.load(Ordering::Acquire);
    (offset != NONE).then_some(offset)
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}
