//! The arguments of `give_up.lua`.

use bytes::BufMut;
use campanile_core::{Entry, Grant};

use super::renew::write_grant;

/// Writes the item `given_up`.
pub(super) fn write_item(item: &mut Vec<u8>, grant: Grant, reason: &str) {
    write_grant(item, grant);
    item.put_slice(Entry::kept_error(reason).as_bytes());
}
