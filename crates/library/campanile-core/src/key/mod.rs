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
//! let by_header = key::header(key::HEADER).or(key::coordinates());
//!
//! let record = Record::builder("payments", 0, 7).build();
//! let request = Request::new(record, Payment { id: "p-1".into() });
//! assert_eq!(by_body.extract(&request).unwrap().unwrap().as_bytes(), b"p-1");
//! assert_eq!(by_header.extract(&request).unwrap().unwrap().as_bytes(), b"payments/0@7");
//! ```

mod derived;
mod extract;
mod extractors;
mod into_key;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

pub use self::derived::{DerivationSecret, derive};
pub use self::extract::{And, Fingerprinted, Key, KeyExtractor, Or};
pub use self::extractors::{
    AtCoordinates, Body, Field, Header, RecordKey, body, coordinates, field, from_fn, header,
    record_key_only_first_record_counts,
};
pub use self::into_key::IntoKey;

/// The header with the idempotency key of an event: `idempotency-key`.
///
/// The outbox writes it, the tools of `campanile-admin` read it by default, and
/// `key::header(key::HEADER)` is the extractor for it.
pub const HEADER: &str = "idempotency-key";

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

    /// Creates a key that no other event has: a UUID of version 7, in 36 characters. It contains the
    /// current time in milliseconds, and 74 bits that are random or count within the millisecond.
    ///
    /// Create it once for each event, *before* the first attempt to send it, and keep it for all later
    /// attempts. A producer that may crash between them has to store the key with the event, or use
    /// a key that it can compute again.
    ///
    /// ```
    /// use campanile_core::{IdempotencyKey, Output, key};
    ///
    /// let key = IdempotencyKey::now_v7();
    /// let payment = Output::to("payments").payload("100").header(key::HEADER, key);
    /// // the same event, however often it is sent
    /// let again = payment.clone();
    /// # assert_eq!(payment.headers, again.headers);
    /// # assert_ne!(IdempotencyKey::now_v7(), IdempotencyKey::now_v7());
    /// ```
    #[cfg(feature = "uuid")]
    pub fn now_v7() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// Computes a key from what makes two events the same: 122 bits of a BLAKE3 hash of these parts, as a
    /// UUID of version 8, in 36 characters. The key is the same in every process and release.
    ///
    /// Pass the fields that identify the event, or its whole payload if it contains such a field. Leave
    /// out what differs between two attempts to send the event, such as the time. Two events with the
    /// same parts are one event. Each part is preceded by its length, so that `ab` + `c` differs from
    /// `a` + `bc`.
    ///
    /// The hash contains no secret: if only few contents are possible, such as names, the content can
    /// be found by trying.
    ///
    /// ```
    /// use campanile_core::IdempotencyKey;
    ///
    /// let key = IdempotencyKey::of_content(["order-7", "2026-11-23", "100"]);
    /// assert_eq!(key.as_bytes(), b"099c92eb-c438-8816-a2ef-e6d3ebcf5019");
    /// ```
    pub fn of_content(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Self(derived::of_content(parts).into())
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

/// The bytes, such as for the value of a header.
impl From<IdempotencyKey> for Bytes {
    fn from(key: IdempotencyKey) -> Self {
        key.0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_key_is_the_same_in_every_release() {
        let of = |parts: &[&str]| IdempotencyKey::of_content(parts).to_text().into_owned();
        assert_eq!(of(&["order-7", "2026-11-23", "100"]), "099c92eb-c438-8816-a2ef-e6d3ebcf5019");
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_ne!(of(&[]), of(&[""]));
    }

    #[cfg(feature = "uuid")]
    #[test]
    fn v7_keys_rise_and_are_uuids() {
        let keys: Vec<_> = (0..1000).map(|_| IdempotencyKey::now_v7()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        let text = keys[0].to_text().into_owned();
        assert_eq!(text.parse::<uuid::Uuid>().unwrap().get_version_num(), 7);
        assert_eq!(Bytes::from(keys[0].clone()), text);
    }
}
