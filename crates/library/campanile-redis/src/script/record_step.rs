//! The arguments of `record_step.lua`.

use bytes::BufMut;
use campanile_core::Grant;
use campanile_core::limits::{MAX_STEP_NAME_BYTES, MAX_STEPS_BYTES};

use super::renew::write_grant;

/// Writes the item `done`. What exceeds a limit is sent with the first length that does, and the script
/// refuses it.
pub(super) fn write_item(item: &mut Vec<u8>, grant: Grant, name: &str, result: &[u8]) {
    let name = name.as_bytes();
    let name = &name[..name.len().min(MAX_STEP_NAME_BYTES + 1)];
    let result = &result[..result.len().min(MAX_STEPS_BYTES)];
    write_grant(item, grant);
    item.put_u8(name.len() as u8);
    item.put_slice(name);
    item.put_u32(result.len() as u32);
    item.put_slice(result);
}
