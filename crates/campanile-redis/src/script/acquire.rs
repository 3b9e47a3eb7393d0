//! The arguments of `acquire.lua`.

use std::time::Duration;

use bytes::BufMut;
use campanile_core::limits::MAX_LOCK_TTL;
use campanile_core::{Details, FencingToken, Fingerprint, Owner};

use super::microseconds;

const FLOOR_OFFSET: usize = 16;

/// The time to live of a lock, in µs.
pub(super) fn ttl(ttl: Duration) -> u64 {
    microseconds(ttl.min(MAX_LOCK_TTL))
}

/// Writes the item `asked`.
pub(super) fn write_item(
    item: &mut Vec<u8>,
    owner: Owner,
    fingerprint: Option<Fingerprint>,
    floor: FencingToken,
    details: Option<&Details>,
) {
    item.put_u64(owner.get());
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
    item.put_u64(floor.get());
    write_details(item, details);
}

/// Writes details as an entry stores them: after their length. Writes nothing if there are none.
pub(super) fn write_details(item: &mut Vec<u8>, details: Option<&Details>) {
    if let Some(details) = details.map(Details::as_bytes) {
        item.put_u16(details.len() as u16);
        item.put_slice(details);
    }
}

/// Computes the highest floor of these items. While the server's clock is ahead of it, one token
/// serves all keys.
pub(super) fn highest_floor<'a>(items: impl Iterator<Item = &'a [u8]>) -> u64 {
    let floors = items.filter_map(|item| item[FLOOR_OFFSET..].first_chunk());
    floors.map(|floor| u64::from_be_bytes(*floor)).max().unwrap_or(0)
}
