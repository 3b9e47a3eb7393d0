//! The arguments of `redrive.lua`.

use bytes::BufMut;
use campanile_core::FencingToken;

/// Writes the item `reopened`.
pub(super) fn write_item(item: &mut Vec<u8>, token: FencingToken, force: bool) {
    item.put_u64(token.get());
    item.put_u8(force.into());
}
