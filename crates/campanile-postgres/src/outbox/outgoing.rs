//! What a transaction gives out.

use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::StoreKey;

/// Whose messages a transaction writes, and how many it has written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// None where a policy let the request through without a lock.
    key: Option<StoreKey>,
    count: AtomicU32,
}

impl Outgoing {
    pub(crate) fn of(key: Option<StoreKey>) -> Self {
        Self { key, count: AtomicU32::new(0) }
    }

    /// Counts a message, and gives what it is known by: the same in each run that gives out the same in
    /// the same order.
    pub(super) fn next(&self) -> Option<String> {
        let place = self.count.fetch_add(1, Ordering::Relaxed);
        let key = self.key.as_ref()?;
        let digest = u128::from_be_bytes(*key.digest());
        Some(format!("{}/{digest:032x}/{place}", key.namespace()))
    }

    pub(crate) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }
}
