//! The names of entries in Redis.

use campanile_core::{Namespace, StoreKey};

use crate::bucket::Buckets;
use crate::topology::slot_of;

/// Appends `{namespace:bucket}` and the raw hash of the user's key.
///
/// The braces make Redis Cluster place all keys of a bucket in one slot. The user's key itself is
/// not part of the name, so no byte of it can move the entry to another slot.
pub(crate) fn write_entry_key(out: &mut Vec<u8>, key: &StoreKey, buckets: Buckets) {
    out.push(b'{');
    write_tag(out, key, buckets);
    out.push(b'}');
    out.extend_from_slice(key.digest());
}

/// The key of the entry with this name, if it is one of the namespace.
pub(crate) fn parse_entry_key(
    name: &[u8],
    namespace: &Namespace,
    buckets: Buckets,
) -> Option<StoreKey> {
    let key = StoreKey::from_digest(namespace.clone(), *name.last_chunk()?);
    let mut expected = Vec::with_capacity(name.len());
    write_entry_key(&mut expected, &key, buckets);
    (name == expected).then_some(key)
}

/// A pattern that matches the names of all entries of a namespace, and few others. No character that
/// a namespace may contain has a meaning in it.
pub(crate) fn entry_key_pattern(namespace: &Namespace) -> String {
    format!("{{{namespace}:??}}*")
}

/// The hash slot of an entry.
pub(crate) fn entry_slot(key: &StoreKey, buckets: Buckets) -> u16 {
    let mut tag = Vec::with_capacity(32);
    write_tag(&mut tag, key, buckets);
    slot_of(&tag)
}

/// Appends the hash tag, without its braces.
fn write_tag(out: &mut Vec<u8>, key: &StoreKey, buckets: Buckets) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bucket = buckets.of(key.digest());
    out.extend_from_slice(key.namespace().as_str().as_bytes());
    out.push(b':');
    out.push(HEX[usize::from(bucket >> 4)]);
    out.push(HEX[usize::from(bucket & 15)]);
}

/// Appends a key in the same slot as this entry. It never collides with an entry, because the keys
/// of entries are longer.
pub(crate) fn write_barrier_key(out: &mut Vec<u8>, key: &StoreKey, buckets: Buckets) {
    write_entry_key(out, key, buckets);
    out.truncate(out.len() - key.digest().len());
    out.extend_from_slice(b"wait");
}

/// The key under which a namespace records its bucket count.
pub(crate) fn bucket_count_key(namespace: &Namespace) -> String {
    format!("campanile:{{{namespace}}}")
}

/// The hash slot of [`bucket_count_key`].
pub(crate) fn bucket_count_slot(namespace: &Namespace) -> u16 {
    slot_of(namespace.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use campanile_core::IdempotencyKey;

    use super::*;

    #[test]
    fn entry_key_is_namespace_bucket_and_raw_hash() {
        let namespace = Namespace::try_from("payments").unwrap();
        let key = StoreKey::new(namespace, &IdempotencyKey::new("p-1").unwrap());
        let mut out = Vec::new();
        write_entry_key(&mut out, &key, Buckets::DEFAULT);

        let bucket = key.digest()[15] & 15;
        let mut expected = format!("{{payments:{bucket:02x}}}").into_bytes();
        let tag = expected.clone();
        expected.extend_from_slice(key.digest());
        assert_eq!(out, expected);

        let mut barrier = Vec::new();
        write_barrier_key(&mut barrier, &key, Buckets::DEFAULT);
        assert_eq!(barrier, [&*tag, b"wait"].concat());
    }

    #[test]
    fn bucket_count_key_is_separate_from_entries() {
        let namespace = Namespace::try_from("payments").unwrap();
        assert_eq!(bucket_count_key(&namespace), "campanile:{payments}");
    }
}
