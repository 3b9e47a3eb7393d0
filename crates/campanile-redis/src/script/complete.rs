//! The arguments of `complete.lua`.

use bytes::BufMut;
use campanile_core::{Fingerprint, Grant};

use super::renew::write_grant;

/// The kind of tail of an entry without a reply.
const NO_TAIL: u8 = 0;
const REPLY: u8 = 2;

/// Writes the item `done`: what the client knows of an entry to adopt, and the reply.
pub(super) fn write_item(
    item: &mut Vec<u8>,
    grant: Grant,
    attempt: u16,
    fingerprint: Option<Fingerprint>,
    reply: Option<&[u8]>,
) {
    item.put_u16(attempt);
    item.put_bytes(0, 2); // interrupts, give_ups
    item.put_u8(if reply.is_some() { REPLY } else { NO_TAIL });
    item.put_u8(0); // spare
    write_grant(item, grant);
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
    item.put_slice(reply.unwrap_or_default());
}
