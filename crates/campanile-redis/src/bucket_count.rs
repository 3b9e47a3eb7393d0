//! The agreement of all clients on the bucket count of a namespace.

use campanile_core::Namespace;
use campanile_idempotency::StoreError;
use redis::{Cmd, Value, cmd};

use crate::bucket::Buckets;
use crate::key::bucket_count_key;

/// The key that records the bucket count a namespace was first used with.
pub(crate) struct BucketCountKey<'a> {
    namespace: &'a Namespace,
    buckets: Buckets,
    key: String,
}

impl<'a> BucketCountKey<'a> {
    pub(crate) fn new(namespace: &'a Namespace, buckets: Buckets) -> Self {
        Self { namespace, buckets, key: bucket_count_key(namespace) }
    }

    /// Reads the recorded bucket count.
    pub(crate) fn get_command(&self) -> Cmd {
        cmd("GET").arg(&self.key).take()
    }

    /// Records this store's bucket count if none is recorded, and returns the count that was
    /// recorded before. Send it only after [`get_command`](Self::get_command) returned nil: a Redis
    /// that is out of memory refuses this write.
    pub(crate) fn set_command(&self) -> Cmd {
        // The key has no time to live, because it must outlive every entry. `NX GET` is atomic: of
        // two concurrent clients, one sees the count that the other has set.
        cmd("SET").arg(&self.key).arg(self.buckets.count()).arg("NX").arg("GET").take()
    }

    /// Compares the recorded bucket count with this store's.
    pub(crate) fn check(&self, recorded: &Value) -> Result<(), StoreError> {
        let Self { namespace, buckets, key } = self;
        let unreadable = || StoreError::unreadable(format!("{key} does not hold a bucket count"));
        let count = match recorded {
            Value::Nil => buckets.count(),
            Value::BulkString(text) => parse_count(text).ok_or_else(unreadable)?,
            _ => return Err(unreadable()),
        };
        if count != buckets.count() {
            return Err(StoreError::misconfigured(format!(
                "the namespace {namespace} has {count} buckets, but this store is configured for \
                 {} and would not find existing entries; use `with_buckets({count})` or \
                 another namespace",
                buckets.count()
            )));
        }
        Ok(())
    }
}

fn parse_count(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
