//! An atomic, optional offset.

use std::sync::atomic::{AtomicI64, Ordering};

/// The value for no offset. The offsets of records are never negative.
const NONE: i64 = -1;

/// An optional offset that one thread stores and any thread may load.
#[derive(Debug)]
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
