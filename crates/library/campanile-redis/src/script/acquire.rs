//! The arguments of `acquire.lua`.

use std::time::Duration;

use bytes::BufMut;
use campanile_core::limits::MAX_LOCK_TTL;
use campanile_core::{Details, Fingerprint, Owner};

use super::microseconds;

/// The time to live of a lock, in µs.
pub(super) fn ttl(ttl: Duration) -> u64 {
    microseconds(ttl.min(MAX_LOCK_TTL))
}

/// Writes the item `asked`.
pub(super) fn write_item(item: &mut Vec<u8>, owner: Owner, fingerprint: Option<Fingerprint>) {
    item.put_u64(owner.get());
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
}

/// Writes details as an entry stores them: after their length. Writes nothing if there are none.
pub(super) fn write_details(args: &mut Vec<u8>, details: Option<&Details>) {
    if let Some(details) = details.map(Details::as_bytes) {
        args.put_u16(details.len() as u16);
        args.put_slice(details);
    }
}
