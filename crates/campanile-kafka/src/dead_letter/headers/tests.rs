//! Names and values against those of the classes that are named, as their sources state them.

use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Decode, RecordBuilder, Timestamp};
use campanile_idempotency::IdempotencyError;

use super::*;

fn payment() -> RecordBuilder {
    Record::builder("payments", 3, 42)
        .timestamp(Timestamp::CreateTime(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)))
        .payload("p")
}

fn cause(error: impl Into<BoxError>) -> Cause {
    Cause::of(&*error.into())
}

fn headers(record: &Record, cause: &Cause, style: HeaderStyle) -> Vec<Header> {
    let token = FencingToken::new(1_700_000_000_000_000);
    Letter { record, group: "billing", cause, token, truncated: false }.headers(style)
}

/// The values of this name.
fn all<'h>(headers: &'h [Header], name: &str) -> Vec<Option<&'h [u8]>> {
    let of_name = headers.iter().filter(|(n, _)| n == name);
    of_name.map(|(_, value)| value.as_deref()).collect()
}

/// The one value of this name.
fn one<'h>(headers: &'h [Header], name: &str) -> &'h [u8] {
    match all(headers, name)[..] {
        [Some(value)] => value,
        ref other => panic!("{name}: {other:?}"),
    }
}

fn names_with<'h>(headers: &'h [Header], prefix: &str) -> Vec<&'h str> {
    headers.iter().filter_map(|(name, _)| name.strip_prefix(prefix)).collect()
}
