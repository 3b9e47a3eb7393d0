//! One assignment of one partition: what the consumer's thread and the dispatcher share of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::budget::Stock;
use crate::extent::Extent;
use crate::retry_topics::Rung;
use crate::transaction::{Outbox, Pending};

/// No offset.
const NONE: i64 = -1;

/// Which assignment: the epoch. A partition that is revoked and assigned again has another one, so
/// that what finishes late of the old one meets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub(crate) u64);

/// One assignment of one partition.
pub(crate) struct Slot {
    pub(crate) id: SlotId,
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    /// The retry topic that it is of.
    pub(crate) rung: Option<Rung>,
    /// What is kept in memory of it.
    pub(crate) stock: Arc<Stock>,
    /// The same of all partitions.
    pub(crate) total: Arc<Stock>,
    pub(crate) extent: Extent,
    /// What waits for a transaction.
    pub(crate) outbox: Outbox,
    mark: AtomicI64,
    /// The mark that was committed last, where that is done in transactions.
    committed: AtomicI64,
    over: AtomicBool,
}

impl Slot {
    pub(crate) fn new(
        id: SlotId,
        topic: Arc<str>,
        partition: i32,
        rung: Option<Rung>,
        total: Arc<Stock>,
    ) -> Self {
        Self {
            id,
            topic,
            partition,
            rung,
            stock: Arc::default(),
            total,
            extent: Extent::new(),
            outbox: Outbox::default(),
            mark: AtomicI64::new(NONE),
            committed: AtomicI64::new(NONE),
            over: AtomicBool::new(false),
        }
    }

    /// The offset to commit: everything below it is finished, or was never to be read. `None` while
    /// there is none to commit.
    pub(crate) fn mark(&self) -> Option<i64> {
        some(&self.mark)
    }

    /// Moves the mark, past the records that have given out these. By the dispatcher alone.
    pub(crate) fn advance(&self, mark: i64, pending: impl ExactSizeIterator<Item = Pending>) {
        if pending.len() == 0 {
            self.set_mark(mark);
        } else {
            self.outbox.put(pending, || self.set_mark(mark));
        }
    }

    /// The mark that a transaction has committed.
    pub(crate) fn committed(&self) -> Option<i64> {
        some(&self.committed)
    }

    /// Set by the consumer's thread alone.
    pub(crate) fn set_committed(&self, mark: i64) {
        self.committed.store(mark, Ordering::Release);
    }

    fn set_mark(&self, offset: i64) {
        self.mark.store(offset, Ordering::Release);
    }

    /// Nothing is finished any more. Set by the dispatcher alone.
    pub(crate) fn clear_mark(&self) {
        self.mark.store(NONE, Ordering::Release);
    }

    /// Whether the partition was revoked since.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Set by the consumer's thread alone.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn some(offset: &AtomicI64) -> Option<i64> {
    let offset = offset.load(Ordering::Acquire);
    (offset != NONE).then_some(offset)
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}
