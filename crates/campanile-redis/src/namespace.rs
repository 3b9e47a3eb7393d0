//! The agreement of all clients on the bucket count of a namespace.

use campanile_core::Namespace;
use campanile_idempotency::StoreError;
use redis::{Cmd, Value, cmd};

use crate::bucket::Buckets;
use crate::key::buckets_key;

/// The key that records the bucket count a namespace was first used with.
pub(crate) struct Marker<'a> {
    namespace: &'a Namespace,
    buckets: Buckets,
    key: String,
}

impl<'a> Marker<'a> {
    pub(crate) fn new(namespace: &'a Namespace, buckets: Buckets) -> Self {
        Self { namespace, buckets, key: buckets_key(namespace) }
    }

    /// Reads the recorded bucket count.
    pub(crate) fn get(&self) -> Cmd {
        cmd("GET").arg(&self.key).take()
    }

    /// Records this store's bucket count if none is recorded, and returns the count that was
    /// recorded before. Send it only after [`get`](Self::get) returned nil: a Redis that is out of
    /// memory refuses this write.
    pub(crate) fn set(&self) -> Cmd {
        // The key has no time to live, because it must outlive every entry. `NX GET` is atomic: of
        // two concurrent clients, one sees the count that the other has set.
        cmd("SET").arg(&self.key).arg(self.buckets.count()).arg("NX").arg("GET").take()
    }

    /// Compares the recorded bucket count with this store's.
    pub(crate) fn compare(&self, first_used: &Value) -> Result<(), StoreError> {
        let Self { namespace, buckets, key } = self;
        let unreadable = || StoreError::unreadable(format!("{key} does not hold a bucket count"));
        let agreed = match first_used {
            Value::Nil => buckets.count(),
            Value::BulkString(text) => count(text).ok_or_else(unreadable)?,
            _ => return Err(unreadable()),
        };
        if agreed != buckets.count() {
            return Err(StoreError::unavailable(format!(
                "the namespace {namespace} has {agreed} buckets, but this store is configured for \
                 {} and would not find existing entries; use `with_buckets({agreed})` or \
                 another namespace",
                buckets.count()
            )));
        }
        Ok(())
    }
}

fn count(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
