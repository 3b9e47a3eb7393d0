//! The arguments of `complete.lua`.

use bytes::BufMut;
use campanile_core::{Details, Entry, Fingerprint, Grant};

use super::acquire::write_details;
use super::renew::write_grant;

/// Writes the item `done`: what the client knows of an entry to adopt, and the tail after its kind.
pub(super) fn write_item(
    item: &mut Vec<u8>,
    grant: Grant,
    attempt: u16,
    fingerprint: Option<Fingerprint>,
    reply: Option<&[u8]>,
    details: Option<&Details>,
) {
    item.put_u16(attempt);
    item.put_bytes(0, 2); // interrupts, give_ups
    write_grant(item, grant);
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
    if details.is_some() || reply.is_some() {
        item.put_u8(Entry::completed_tail_kind(details.is_some(), reply.is_some()));
    }
    write_details(item, details);
    item.put_slice(reply.unwrap_or_default());
}
