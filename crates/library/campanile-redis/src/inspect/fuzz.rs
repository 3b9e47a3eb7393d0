//! Fuzz target: the replies to commands that read.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Namespace};
use campanile_idempotency::{Found, ScanCursor};
use redis::Value;

use super::cursor::Position;
use super::{decode_found, decode_time};
use crate::bucket::Buckets;
use crate::key::{parse_entry_key, write_entry_key};

/// The bytes are an array of the replies to `TIME`, `GET` and `PEXPIRETIME`, or the name of a key, or a
/// cursor.
#[test]
fn reads() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/reads")).for_each(
        |bytes: &[u8]| {
            check_name(bytes);
            check_cursor(bytes);
            let Ok(Value::Array(replies)) = redis::parse_redis_value(bytes) else { return };
            let mut replies = replies.into_iter();
            if let Ok(now) = decode_time(replies.next()) {
                assert!(now >= SystemTime::UNIX_EPOCH);
            }
            let (value, expiry) = (replies.next(), replies.next());
            if let Ok(found) = decode_found(value.clone(), expiry.clone()) {
                check_found(&found, value.as_ref(), expiry.as_ref());
            }
        },
    );
}

/// A value that is there is never absent, unless it has expired meanwhile.
fn check_found(found: &Found, value: Option<&Value>, expiry: Option<&Value>) {
    let stored = match value {
        Some(Value::BulkString(bytes)) => Some(&bytes[..]),
        _ => None,
    };
    match found {
        Found::Entry { entry, expires_at } => {
            assert_eq!(Some(&entry.to_bytes()[..]), stored);
            let latest = SystemTime::UNIX_EPOCH + Duration::from_millis(1 << 50);
            assert!((SystemTime::UNIX_EPOCH..=latest).contains(expires_at));
        }
        Found::Absent if stored.is_some() => match expiry {
            Some(Value::Int(expiry)) => assert!(*expiry < -1),
            expiry => assert!(matches!(expiry, Some(Value::ServerError(_)))),
        },
        Found::Unreadable { reason } => {
            assert!(!reason.is_empty());
            assert!(stored.is_none_or(|bytes| Entry::from_bytes(bytes).is_err()));
        }
        _ => {}
    }
}

fn check_name(name: &[u8]) {
    let namespace = Namespace::try_from("payments").unwrap();
    let buckets = Buckets::DEFAULT;
    if let Some(key) = parse_entry_key(name, &namespace, buckets) {
        let mut written = Vec::new();
        write_entry_key(&mut written, &key, buckets);
        assert_eq!(written, name);
    }
}

fn check_cursor(bytes: &[u8]) {
    match Position::decode(&ScanCursor::from_bytes(bytes)) {
        Ok(Some(position)) => assert_eq!(position.encode().as_bytes(), bytes),
        Ok(None) => assert!(bytes.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && bytes.len() < 18),
    }
}
