//! The agreement of all clients on a namespace's buckets.

use campanile_core::Namespace;
use campanile_idempotency::StoreError;
use redis::{Cmd, Value, cmd};

use crate::bucket::Buckets;
use crate::key::buckets_key;

/// The question for the count that a namespace was first used with.
pub(crate) struct Marker<'a> {
    namespace: &'a Namespace,
    buckets: Buckets,
    key: String,
}

impl<'a> Marker<'a> {
    pub(crate) fn new(namespace: &'a Namespace, buckets: Buckets) -> Self {
        Self { namespace, buckets, key: buckets_key(namespace) }
    }

    /// Asks for it.
    pub(crate) fn get(&self) -> Cmd {
        cmd("GET").arg(&self.key).take()
    }

    /// Makes it ours if there is none, and else tells it. For when [`get`](Self::get) gives nil: a
    /// Redis that is out of memory refuses this one.
    pub(crate) fn set(&self) -> Cmd {
        // No time to live: it must outlive every entry. Of two that come at once, one sees the
        // other.
        cmd("SET").arg(&self.key).arg(self.buckets.count()).arg("NX").arg("GET").take()
    }

    /// Compares it with ours.
    pub(crate) fn compare(&self, first_used: &Value) -> Result<(), StoreError> {
        let Self { namespace, buckets, key } = self;
        let unreadable = || StoreError::unreadable(format!("{key} holds no number of buckets"));
        let agreed = match first_used {
            Value::Nil => buckets.count(),
            Value::BulkString(text) => count(text).ok_or_else(unreadable)?,
            _ => return Err(unreadable()),
        };
        if agreed != buckets.count() {
            return Err(StoreError::unavailable(format!(
                "the namespace {namespace} is kept in {agreed} buckets, and this store is set to \
                 {}: it would not find the entries of others; use `with_buckets({agreed})`, or \
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
