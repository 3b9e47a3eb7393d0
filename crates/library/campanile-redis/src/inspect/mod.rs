//! Reads entries, for operators and tools.
//!
//! Only plain commands that read are sent, so that a user who may not write can use them. A script
//! that filters the entries takes as much of the server's time.

mod cursor;
#[cfg(test)]
mod fuzz;
mod scan;

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, StoreKey};
use campanile_idempotency::{
    Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, StoreError,
};
use redis::{Cmd, Value, cmd, from_redis_value};

use crate::RedisStore;
use crate::failure::Failure;
use crate::key::{entry_slot, write_entry_key};
use crate::router::{Router, Target};

/// Needs fewer permissions than a store that applies commands, see
/// [`RedisConfig`](crate::RedisConfig#permissions).
impl InspectStore for RedisStore {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        let read = async |router: Router<'_>| Ok(inspect(router, key).await?);
        self.0.call(read).await
    }

    /// A page examines about 250 keys of the server, whatever namespaces they belong to, in at most
    /// three round trips. In a cluster, the masters are examined one after another. The replies of
    /// COMPLETED entries are part of the page, so with large replies it may need a longer
    /// [command timeout](crate::RedisConfig::with_command_timeout).
    ///
    /// # Errors
    /// Fails in addition if the server was restarted or replaced since the scan began, or if slots of
    /// the cluster were moved: the scan must then be started again. Entries of a slot that is being
    /// moved during the whole scan may be missed.
    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        self.0.call(async |router: Router<'_>| scan::page(router, filter, cursor).await).await
    }
}

async fn inspect(router: Router<'_>, key: &StoreKey) -> Result<Inspection, Failure> {
    let buckets = router.store.buckets;
    let mut name = Vec::new();
    write_entry_key(&mut name, key, buckets);
    let target = Target::Slot(entry_slot(key, buckets));
    let [get, get_expiry] = read_commands(&name);
    let mut replies =
        router.read(&target, key.namespace(), &[cmd("TIME"), get, get_expiry]).await?.into_iter();
    let now = decode_time(replies.next())?;
    Ok(Inspection::new(now, decode_found(replies.next(), replies.next())?))
}

/// Reads an entry and when it expires.
fn read_commands(name: &[u8]) -> [Cmd; 2] {
    ["GET", "PEXPIRETIME"].map(|command| cmd(command).arg(name).take())
}

/// Decodes the replies to [`read_commands`]. A key that another node has is absent.
fn decode_found(value: Option<Value>, expiry: Option<Value>) -> Result<Found, Failure> {
    const NEVER: i64 = -1;
    /// For a key that something else than this store has written. The latest time to which this store
    /// would set it.
    const LATEST: u64 = 1 << 50;
    let expires_at = match (&value, expiry) {
        (Some(Value::Nil), _) => return Ok(Found::Absent),
        (Some(Value::ServerError(error)), _) if error.code() == "WRONGTYPE" => {
            return Ok(unreadable("the value is not a string"));
        }
        (Some(Value::ServerError(_)), _) | (_, Some(Value::ServerError(_))) => {
            return Ok(Found::Absent);
        }
        (_, Some(Value::Int(NEVER))) => LATEST,
        (_, Some(Value::Int(milliseconds))) => match u64::try_from(milliseconds) {
            Ok(milliseconds) => milliseconds,
            // Expired between the two commands.
            Err(_) => return Ok(Found::Absent),
        },
        _ => return Err(Failure::unexpected("PEXPIRETIME did not return a number")),
    };
    let Some(Value::BulkString(bytes)) = value else {
        return Err(Failure::unexpected("GET did not return a string"));
    };
    let expires_at = SystemTime::UNIX_EPOCH + Duration::from_millis(expires_at.min(LATEST));
    Ok(match Entry::from_bytes(&bytes) {
        Ok(entry) => Found::Entry { entry, expires_at },
        Err(reason) => unreadable(reason.to_string()),
    })
}

fn unreadable(reason: impl Into<Box<str>>) -> Found {
    Found::Unreadable { reason: reason.into() }
}

/// Decodes the reply to `TIME`.
fn decode_time(reply: Option<Value>) -> Result<SystemTime, Failure> {
    let time = from_redis_value::<(u64, u64)>(reply.unwrap_or(Value::Nil));
    let (seconds, micros) = time.map_err(|_| Failure::unexpected("TIME did not return a time"))?;
    let since = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    let time = SystemTime::UNIX_EPOCH.checked_add(since);
    time.ok_or_else(|| Failure::unexpected("TIME returned a time out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reply: &str) -> Value {
        redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap()
    }

    fn found(value: Value, expiry: Value) -> &'static str {
        match decode_found(Some(value), Some(expiry)) {
            Ok(Found::Absent) => "absent",
            Ok(Found::Entry { .. }) => "entry",
            Ok(Found::Unreadable { .. }) => "unreadable",
            Ok(_) => "unknown",
            Err(_) => "failure",
        }
    }

    #[test]
    fn what_is_no_entry_is_absent_or_unreadable() {
        let text = || Value::BulkString(b"no entry".to_vec());
        let moved = || error("MOVED 3999 127.0.0.1:6381");
        let wrong_type = error("WRONGTYPE Operation against a key holding the wrong kind of value");
        for (value, expiry, expected) in [
            (Value::Nil, Value::Int(-2), "absent"),
            // Created between the two commands.
            (Value::Nil, Value::Int(1_800_000_000_000), "absent"),
            (moved(), moved(), "absent"),
            (text(), moved(), "absent"),
            (text(), Value::Int(-2), "absent"),
            (wrong_type, Value::Int(-1), "unreadable"),
            (text(), Value::Int(-1), "unreadable"),
            (text(), Value::Int(1_800_000_000_000), "unreadable"),
            (text(), Value::Nil, "failure"),
            (Value::Int(1), Value::Int(-1), "failure"),
        ] {
            let shown = format!("{value:?}, {expiry:?}");
            assert_eq!(found(value, expiry), expected, "{shown}");
        }
    }
}
