//! The agreement of all clients on a namespace's buckets.

use campanile_core::Namespace;
use campanile_idempotency::StoreError;
use redis::{Cmd, Value, cmd};

use crate::bucket::Buckets;
use crate::connection::Link;
use crate::failure::{self, Failure};
use crate::key::buckets_key;

/// Compares the count with the one that the namespace was first used with, or makes it that.
pub(crate) async fn compare_buckets(
    link: &Link,
    namespace: &Namespace,
    buckets: Buckets,
) -> Result<(), Failure> {
    if link.has_compared(namespace) {
        return Ok(());
    }
    let key = buckets_key(namespace);
    // Asked first, because a Redis that is out of memory refuses the other.
    let mut first_used = ask(link, cmd("GET").arg(&key)).await?;
    if first_used == Value::Nil {
        // No time to live: it must outlive every entry. Of two that come at once, one sees the
        // other.
        let set = cmd("SET").arg(&key).arg(buckets.count()).arg("NX").arg("GET").take();
        first_used = ask(link, &set).await?;
    }
    let agreed = match first_used {
        Value::Nil => buckets.count(),
        Value::BulkString(text) => count(&text).ok_or_else(|| unreadable(&key))?,
        _ => return Err(unreadable(&key)),
    };
    if agreed != buckets.count() {
        return Err(Failure::Final(StoreError::unavailable(format!(
            "the namespace {namespace} is kept in {agreed} buckets, and this store is set to {}: it \
             would not find the entries of others; use `with_buckets({agreed})`, or another \
             namespace",
            buckets.count()
        ))));
    }
    link.note_compared(namespace);
    Ok(())
}

async fn ask(link: &Link, command: &Cmd) -> Result<Value, Failure> {
    failure::value(link.connection.clone().send_packed_command(command).await)
}

fn count(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn unreadable(key: &str) -> Failure {
    Failure::Final(StoreError::unreadable(format!("{key} holds no number of buckets")))
}
