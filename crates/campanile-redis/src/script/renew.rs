//! The arguments of `renew.lua`.

use bytes::BufMut;
use campanile_core::Grant;

/// The item `grant`, which begins the items of all that settle one, too.
pub(super) fn write_grant(item: &mut Vec<u8>, grant: Grant) {
    item.put_u64(grant.token.get());
    item.put_u64(grant.owner.get());
}
