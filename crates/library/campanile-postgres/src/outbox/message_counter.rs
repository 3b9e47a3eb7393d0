//! The messages of a transaction.

use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::StoreKey;

/// The key for which a transaction writes messages, and how many it has written.
#[derive(Debug)]
pub(crate) struct MessageCounter {
    /// `None` if a policy let the request through without a lock.
    key: Option<StoreKey>,
    count: AtomicU32,
}

impl MessageCounter {
    pub(crate) fn new(key: Option<StoreKey>) -> Self {
        Self { key, count: AtomicU32::new(0) }
    }

    /// Counts a message and computes its identity. The identity is the same in each run, provided
    /// that each run publishes the same messages in the same order.
    pub(super) fn next_id(&self) -> Option<String> {
        let index = self.count.fetch_add(1, Ordering::Relaxed);
        let key = self.key.as_ref()?;
        Some(format!("{}/{}/{index}", key.namespace(), key.digest_hex()))
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }
}
