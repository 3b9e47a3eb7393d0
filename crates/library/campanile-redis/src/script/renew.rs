//! The arguments of `renew.lua`.

use bytes::BufMut;
use campanile_core::Grant;

/// Writes the item `grant`, which also begins the items of all scripts that settle a grant.
pub(super) fn write_grant(item: &mut Vec<u8>, grant: Grant) {
    item.put_u64(grant.token.get());
    item.put_u64(grant.owner.get());
}
