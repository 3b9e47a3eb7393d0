//! The agreement of all clients on the bucket count of a namespace.

use campanile_core::Namespace;
use campanile_idempotency::StoreError;
use redis::{Cmd, Value, cmd};

use crate::bucket::Buckets;
use crate::connection::ConnectionHandle;
use crate::failure::Failure;
use crate::key::bucket_count_key;

/// The key that records the bucket count a namespace was first used with.
pub(crate) struct BucketCountKey<'a> {
    pub(crate) namespace: &'a Namespace,
    buckets: Buckets,
    key: String,
}

impl<'a> BucketCountKey<'a> {
    pub(crate) fn new(namespace: &'a Namespace, buckets: Buckets) -> Self {
        Self { namespace, buckets, key: bucket_count_key(namespace) }
    }

    /// Reads the recorded bucket count. If there is none, records this store's and returns nil, or
    /// returns `None` if it may not record. `send` returns the reply to a command, and the
    /// connection that the reply came from.
    pub(crate) async fn get_or_set<F>(
        &self,
        may_record: bool,
        send: impl Fn(Cmd) -> F,
    ) -> Result<Option<(Value, ConnectionHandle)>, Failure>
    where
        F: Future<Output = Result<(Value, ConnectionHandle), Failure>>,
    {
        let mut get = cmd("GET");
        get.arg(&self.key);
        match send(get).await? {
            // Sent only now, because a Redis that is out of memory refuses this write.
            (Value::Nil, _) if may_record => {
                // The key has no time to live, because it must outlive every entry. `NX GET` is
                // atomic: of several concurrent clients, all but one see the count that this one
                // has set.
                let mut set = cmd("SET");
                set.arg(&self.key).arg(self.buckets.count()).arg("NX").arg("GET");
                send(set).await.map(Some)
            }
            (Value::Nil, _) => Ok(None),
            recorded => Ok(Some(recorded)),
        }
    }

    /// Compares the recorded bucket count with this store's. Nil: it has just been recorded.
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
