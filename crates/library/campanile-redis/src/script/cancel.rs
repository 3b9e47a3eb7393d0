//! The arguments of `cancel.lua`.

use bytes::BufMut;
use campanile_core::Owner;

/// Writes the item `owner`.
pub(super) fn write_item(item: &mut Vec<u8>, owner: Owner) {
    item.put_u64(owner.get());
}
