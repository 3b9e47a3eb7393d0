//! What an entry says about its last grant.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::tail::truncate;
use crate::limits::MAX_DETAIL_BYTES;
use crate::{Coordinates, IdempotencyKey, Owner, TraceContext};

/// What an entry says about its last grant, for operators and tools: the key, the process that was
/// granted the lock, the record, and its trace. Each part may be absent.
///
/// No operation depends on the details. They are written by the grant, and dropped when the key is
/// completed, unless the completion keeps them. A process that knows no details keeps those of an
/// earlier grant; [`owner`](Self::owner) shows whose they are.
///
/// `Debug` prints only the length, because the key may contain personal data.
///
/// # Encoding
///
/// A sequence of fields: one byte for the kind, one byte for the length, and the value. Fields of an
/// unknown kind are skipped.
///
/// | kind | value |
/// |---|---|
/// | 1 | the owner: 8 bytes, big-endian |
/// | 2 | the first 255 bytes of the idempotency key |
/// | 3 | the name of the process, in UTF-8 |
/// | 4 | the topic |
/// | 5 | the partition and the offset: 4 and 8 bytes, big-endian |
/// | 6 | the trace: its identifier, that of the span, the flags: 16, 8 and 1 bytes, big-endian |
#[derive(Clone, PartialEq, Eq)]
pub struct Details(Arc<[u8]>);

const OWNER: u8 = 1;
const KEY: u8 = 2;
const INSTANCE: u8 = 3;
const TOPIC: u8 = 4;
const POSITION: u8 = 5;
const TRACE: u8 = 6;

impl Details {
    /// Starts the details of a grant to this owner.
    pub fn builder(owner: Owner) -> DetailsBuilder {
        let mut builder = DetailsBuilder(smallvec![]);
        builder.push(OWNER, &owner.get().to_be_bytes());
        builder
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the encoded details.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the nonce of the grant that wrote the details.
    pub fn owner(&self) -> Option<Owner> {
        Owner::new(u64::from_be_bytes(self.field(OWNER)?.try_into().ok()?))
    }

    /// Returns the first 255 bytes of the idempotency key.
    pub fn key(&self) -> Option<&[u8]> {
        self.field(KEY)
    }

    /// Returns the name of the process that was granted the lock. Invalid UTF-8 is replaced.
    pub fn instance(&self) -> Option<Cow<'_, str>> {
        self.field(INSTANCE).map(String::from_utf8_lossy)
    }

    /// Returns the position of the record for which the lock was granted.
    pub fn coordinates(&self) -> Option<Coordinates> {
        let topic = str::from_utf8(self.field(TOPIC)?).ok()?.into();
        let (partition, offset) = self.field(POSITION)?.split_first_chunk()?;
        Some(Coordinates {
            topic,
            partition: i32::from_be_bytes(*partition),
            offset: i64::from_be_bytes(offset.try_into().ok()?),
        })
    }

    /// Returns the trace of the run, or of the record if the run had none of its own.
    pub fn trace(&self) -> Option<TraceContext> {
        let (trace_id, rest) = self.field(TRACE)?.split_first_chunk()?;
        let (span_id, flags) = rest.split_first_chunk()?;
        let &[flags] = flags else {
            return None;
        };
        TraceContext::new(u128::from_be_bytes(*trace_id), u64::from_be_bytes(*span_id), flags)
    }

    fn field(&self, wanted: u8) -> Option<&[u8]> {
        let mut rest = &*self.0;
        while let [kind, len, after @ ..] = rest {
            let (value, next) = after.split_at_checked(usize::from(*len))?;
            if *kind == wanted {
                return Some(value);
            }
            rest = next;
        }
        None
    }
}

impl fmt::Debug for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Details({} bytes)", self.0.len())
    }
}

/// Builds [`Details`]. Values that are longer than 255 bytes are cut.
#[derive(Debug)]
#[must_use]
pub struct DetailsBuilder(SmallVec<[u8; 256]>);

impl DetailsBuilder {
    /// Sets the idempotency key.
    pub fn key(mut self, key: &IdempotencyKey) -> Self {
        self.push(KEY, key.as_bytes());
        self
    }

    /// Sets the name of the process.
    pub fn instance(mut self, name: &str) -> Self {
        self.push(INSTANCE, truncate(name, MAX_DETAIL_BYTES).as_bytes());
        self
    }

    /// Sets the position of the record.
    pub fn coordinates(mut self, at: &Coordinates) -> Self {
        self.push(TOPIC, at.topic.as_bytes());
        let mut position = [0; 12];
        position[..4].copy_from_slice(&at.partition.to_be_bytes());
        position[4..].copy_from_slice(&at.offset.to_be_bytes());
        self.push(POSITION, &position);
        self
    }

    /// Sets the trace.
    pub fn trace(mut self, trace: &TraceContext) -> Self {
        let mut bytes = [0; 25];
        bytes[..16].copy_from_slice(&trace.trace_id().to_be_bytes());
        bytes[16..24].copy_from_slice(&trace.span_id().to_be_bytes());
        bytes[24] = trace.flags();
        self.push(TRACE, &bytes);
        self
    }

    /// Encodes the details.
    pub fn build(self) -> Details {
        Details::from_bytes(&self.0)
    }

    fn push(&mut self, kind: u8, value: &[u8]) {
        let value = &value[..value.len().min(MAX_DETAIL_BYTES)];
        self.0.extend_from_slice(&[kind, value.len() as u8]);
        self.0.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::new(7).unwrap()
    }

    #[test]
    fn every_part_can_be_read_back() {
        let at: Coordinates = "payments/3@42".parse().unwrap();
        let trace = TraceContext::new(1, 2, 3).unwrap();
        let details = Details::builder(owner())
            .key(&IdempotencyKey::new("p-1").unwrap())
            .instance("host/1")
            .coordinates(&at)
            .trace(&trace)
            .build();
        let details = Details::from_bytes(details.as_bytes());
        assert_eq!(details.owner(), Some(owner()));
        assert_eq!(details.key(), Some(&b"p-1"[..]));
        assert_eq!(details.instance().as_deref(), Some("host/1"));
        assert_eq!((details.coordinates(), details.trace()), (Some(at), Some(trace)));
    }

    #[test]
    fn absent_parts_are_none() {
        let details = Details::builder(owner()).build();
        assert_eq!((details.key(), details.instance()), (None, None));
        assert_eq!((details.coordinates(), details.trace()), (None, None));
    }

    #[test]
    fn long_values_are_cut_at_character_boundaries() {
        let long = "é".repeat(200); // of two bytes each
        let key = IdempotencyKey::new(long.clone()).unwrap();
        let details = Details::builder(owner()).key(&key).instance(&long).build();
        assert_eq!(details.key().unwrap(), &long.as_bytes()[..255]);
        assert_eq!(details.instance().unwrap(), "é".repeat(127));
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let bytes = [&[99, 2, 0, 0][..], Details::builder(owner()).build().as_bytes()].concat();
        assert_eq!(Details::from_bytes(&bytes).owner(), Some(owner()));
    }

    #[test]
    fn garbage_reads_as_absent() {
        for garbage in
            [&b""[..], b"\x01", b"\x01\x08short", b"\x01\x01\x01", b"\x05\x0c123456789012"]
        {
            let details = Details::from_bytes(garbage);
            assert_eq!((details.owner(), details.coordinates()), (None, None), "{garbage:?}");
        }
        assert_eq!(Details::from_bytes(&[TRACE, 1, 0]).trace(), None);
    }
}
