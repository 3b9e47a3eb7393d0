//! The arguments of `complete.lua`.

use bytes::BufMut;
use campanile_core::{Details, Fingerprint, Grant};

use super::acquire::write_details;
use super::renew::write_grant;

/// The kinds of tail of a COMPLETED entry.
const NO_TAIL: u8 = 0;
const REPLY: u8 = 2;
const DETAILS_AND_NO_ERROR: u8 = 3;
const DETAILS_AND_REPLY: u8 = 4;

/// Writes the item `done`: what the client knows of an entry to adopt, and the tail.
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
    item.put_u8(match (details.is_some(), reply.is_some()) {
        (false, false) => NO_TAIL,
        (false, true) => REPLY,
        (true, false) => DETAILS_AND_NO_ERROR,
        (true, true) => DETAILS_AND_REPLY,
    });
    item.put_u8(0); // spare
    write_grant(item, grant);
    item.put_u64(fingerprint.map_or(0, Fingerprint::to_bits));
    write_details(item, details);
    item.put_slice(reply.unwrap_or_default());
}
