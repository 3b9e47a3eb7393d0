//! The arguments of `fail.lua`.

use std::time::Duration;

use bytes::BufMut;
use campanile_core::limits::MAX_BACKOFF;
use campanile_core::{Entry, Grant};

use super::microseconds;
use super::renew::write_grant;

/// The flag that makes the entry's next grant a give-up lock.
const PERMANENT_FAILURE: u8 = 16;

/// Writes the item `failed`.
pub(super) fn write_item(
    item: &mut Vec<u8>,
    grant: Grant,
    delay: Duration,
    last: bool,
    error: &str,
) {
    write_grant(item, grant);
    item.put_u64(microseconds(delay.min(MAX_BACKOFF)));
    item.put_u8(if last { PERMANENT_FAILURE } else { 0 });
    item.put_slice(Entry::kept_error(error).as_bytes());
}
