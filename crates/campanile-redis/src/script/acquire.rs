//! The arguments of `acquire.lua`.

use std::time::Duration;

use bytes::BufMut;
use campanile_core::limits::MAX_LOCK_TTL;
use campanile_core::{FencingToken, Fingerprint, Owner};

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
) {
    item.put_u64(owner.get());
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
    item.put_u64(floor.get());
}

/// Computes the highest floor of these items. While the server's clock is ahead of it, one token
/// serves all keys.
pub(super) fn highest_floor<'a>(items: impl Iterator<Item = &'a [u8]>) -> u64 {
    let floors = items.filter_map(|item| item[FLOOR_OFFSET..].first_chunk());
    floors.map(|floor| u64::from_be_bytes(*floor)).max().unwrap_or(0)
}
