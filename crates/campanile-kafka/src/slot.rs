//! One assignment of one partition: what the consumer's thread and the dispatcher share of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::budget::Stock;
use crate::extent::Extent;
use crate::retry_topics::Rung;

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
    pub(crate) stock: Stock,
    pub(crate) extent: Extent,
    mark: AtomicI64,
    over: AtomicBool,
}

impl Slot {
    pub(crate) fn new(id: SlotId, topic: Arc<str>, partition: i32, rung: Option<Rung>) -> Self {
        Self {
            id,
            topic,
            partition,
            rung,
            stock: Stock::default(),
            extent: Extent::new(),
            mark: AtomicI64::new(NONE),
            over: AtomicBool::new(false),
        }
    }

    /// The offset to commit: everything below it is finished. `None` while nothing is.
    pub(crate) fn mark(&self) -> Option<i64> {
        let mark = self.mark.load(Ordering::Acquire);
        (mark != NONE).then_some(mark)
    }

    /// Set by the dispatcher alone.
    pub(crate) fn set_mark(&self, offset: i64) {
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

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}
