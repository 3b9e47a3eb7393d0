//! An offset that threads share.

use std::sync::atomic::{AtomicI64, Ordering};

/// Stands for no offset. The offsets of records are not negative.
const NONE: i64 = -1;

/// An optional offset. One thread stores it, and others may load it.
pub(crate) struct AtomicOffset(AtomicI64);

impl AtomicOffset {
    pub(crate) const fn none() -> Self {
        Self(AtomicI64::new(NONE))
    }

    pub(crate) fn load(&self) -> Option<i64> {
        let offset = self.0.load(Ordering::Acquire);
        (offset != NONE).then_some(offset)
    }

    pub(crate) fn store(&self, offset: Option<i64>) {
        self.0.store(offset.unwrap_or(NONE), Ordering::Release);
    }
}
