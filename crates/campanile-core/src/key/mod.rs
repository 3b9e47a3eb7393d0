//! The idempotency key, and extractors that find it in a request.
//!
//! Two deliveries are the same event if and only if their keys are equal. Use what the *producer*
//! assigned to the event: an identifier in a header or in the body.
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

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

pub use self::extract::{And, Fingerprinted, Key, KeyExtractor, Or};
pub use self::extractors::{
    AtCoordinates, Body, Field, Header, RecordKey, body, coordinates, field, from_fn, header,
    record_key_only_first_record_counts,
};
pub use self::into_key::IntoKey;

/// The identity of an event: any non-empty sequence of bytes.
///
/// Two deliveries with equal keys are the same event. Campanile never logs the bytes;
/// [`Display`](fmt::Display) escapes them, for the application's own messages.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Bytes);

impl IdempotencyKey {
    /// Creates a key, or `None` if there are no bytes: an empty key is a missing key.
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (!bytes.is_empty()).then_some(Self(bytes))
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the whole key as text. If it is not UTF-8, bytes that are not printable are escaped.
    ///
    /// ```
    /// use campanile_core::IdempotencyKey;
    ///
    /// let text = |bytes: &'static [u8]| IdempotencyKey::new(bytes).unwrap().to_text().into_owned();
    /// assert_eq!(text("zahlung-ä".as_bytes()), "zahlung-ä");
    /// assert_eq!(text(b"p-\xff"), "p-\\xff");
    /// ```
    pub fn to_text(&self) -> Cow<'_, str> {
        match str::from_utf8(&self.0) {
            Ok(text) => text.into(),
            Err(_) => self.0.escape_ascii().to_string().into(),
        }
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN_BYTES: usize = 128;
        let shown = &self.0[..self.0.len().min(MAX_SHOWN_BYTES)];
        write!(f, "{}", shown.escape_ascii())?;
        if self.0.len() > MAX_SHOWN_BYTES {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for IdempotencyKey {
    /// Prints only the length, because keys often contain personal data and `Debug` output ends up
    /// in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}
