//! The idempotency key: what it is, and how to find it in a request.
//!
//! Two deliveries are one event exactly if their keys are equal, so take what the *producer* gave
//! the event: an identifier in a header or in the body.
//!
//! ```
//! use campanile_core::{KeyExtractor, Record, Request, key};
//!
//! struct Payment { id: String }
//!
//! let by_body = key::field(|p: &Payment| &p.id);
//! let by_header = key::header("idempotency-key").or(key::coordinates());
//!
//! let record = Record::builder("payments", 0, 7).build();
//! let request = Request::new(record, Payment { id: "p-1".into() });
//! assert_eq!(by_body.extract(&request).unwrap().unwrap().as_bytes(), b"p-1");
//! assert_eq!(by_header.extract(&request).unwrap().unwrap().as_bytes(), b"payments/0@7");
//! ```

mod extract;
mod extractors;
mod into_key;

use std::fmt;

use bytes::Bytes;

pub use self::extract::{And, Fingerprinted, Key, KeyExtractor, Or};
pub use self::extractors::{
    AtCoordinates, Body, Field, Header, RecordKey, body, coordinates, field, from_fn, header,
    record_key_only_first_record_counts,
};
pub use self::into_key::IntoKey;

/// The identity of an event: any bytes but none.
///
/// Two deliveries with equal keys are one event. The bytes are never logged by Campanile;
/// [`Display`](fmt::Display) escapes them, for the user's own messages.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Bytes);

impl IdempotencyKey {
    /// The key of these bytes, or `None` if there are none: an empty key is a missing one.
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (!bytes.is_empty()).then_some(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 128;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "{}", shown.escape_ascii())?;
        if self.0.len() > SHOWN {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for IdempotencyKey {
    /// The length only: keys tend to be personal, and `Debug` ends in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}
