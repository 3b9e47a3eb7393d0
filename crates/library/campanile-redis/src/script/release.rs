//! The arguments of `release.lua`.

use bytes::BufMut;
use campanile_core::Grant;

use super::renew::write_grant;

/// Writes the item `released`.
pub(super) fn write_item(item: &mut Vec<u8>, grant: Grant, ran: bool) {
    write_grant(item, grant);
    item.put_u8(ran.into());
}
