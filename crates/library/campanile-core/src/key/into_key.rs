//! Conversion of a closure's return value into a key.

use bytes::Bytes;

use crate::{BoxError, IdempotencyKey};

/// Converts into an idempotency key: strings and bytes are used unchanged, integers in decimal.
/// With the feature `uuid`, a `uuid::Uuid` is used in its hyphenated form in lower case.
///
/// Empty values and `None` are missing keys. `Err` is an invalid key.
///
/// Implement it for a type of your own, so that it can be used like a string:
///
/// ```
/// use campanile_core::{BoxError, IdempotencyKey, IntoKey, key};
///
/// #[derive(Clone)]
/// struct PaymentId(String);
///
/// impl IntoKey for PaymentId {
///     fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
///         self.0.into_key()
///     }
/// }
///
/// struct Payment { id: PaymentId }
///
/// let key = key::field(|p: &Payment| &p.id);
/// # use campanile_core::{KeyExtractor, Record, Request};
/// # let payment = Payment { id: PaymentId("p-1".into()) };
/// # let request = Request::new(Record::builder("payments", 0, 0).build(), payment);
/// # assert_eq!(key.extract(&request).unwrap().unwrap().as_bytes(), b"p-1");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an idempotency key",
    note = "return a `String`, `Bytes`, `Vec<u8>`, an integer, or an `Option` or `Result` of one; \
            for a borrowed field use `key::field`",
    note = "for a type of your own, return the value in it (`key::field(|p: &Payment| &p.id.0)`), \
            or implement `IntoKey` for the type; for a `uuid::Uuid`, enable the feature `uuid` of \
            `campanile`"
)]
pub trait IntoKey {
    /// Converts the value to a key, or to `None` if it is missing.
    ///
    /// # Errors
    /// If the value is not a valid key.
    fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError>;
}

impl IntoKey for IdempotencyKey {
    fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
        Ok(Some(self))
    }
}

macro_rules! from_bytes {
    ($($t:ty => $make:expr),* $(,)?) => {$(
        impl IntoKey for $t {
            fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
                let make: fn($t) -> Bytes = $make;
                Ok(IdempotencyKey::new(make(self)))
            }
        }
    )*};
}

from_bytes! {
    Bytes => |b| b,
    Vec<u8> => Bytes::from,
    String => Bytes::from,
    Box<str> => |s| Bytes::from(s.into_string()),
    &str => |s| Bytes::copy_from_slice(s.as_bytes()),
    &String => |s| Bytes::copy_from_slice(s.as_bytes()),
    &[u8] => Bytes::copy_from_slice,
}

macro_rules! from_integer {
    ($($t:ty),*) => {$(
        impl IntoKey for $t {
            fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
                self.to_string().into_key()
            }
        }
    )*};
}

from_integer!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

#[cfg(feature = "uuid")]
impl IntoKey for uuid::Uuid {
    fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
        // The text and not the 16 bytes, so that the key is the same whether a body type declares
        // the field as a `Uuid` or a `String`.
        self.to_string().into_key()
    }
}

impl<K: IntoKey> IntoKey for Option<K> {
    fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
        self.map_or(Ok(None), IntoKey::into_key)
    }
}

impl<K: IntoKey, E: Into<BoxError>> IntoKey for Result<K, E> {
    fn into_key(self) -> Result<Option<IdempotencyKey>, BoxError> {
        self.map_err(Into::into)?.into_key()
    }
}

#[cfg(test)]
#[cfg(feature = "uuid")]
mod tests {
    use super::*;

    #[test]
    fn uuid_key_equals_key_of_its_text() {
        let text = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let uuid: uuid::Uuid = text.parse().unwrap();
        assert_eq!(uuid.into_key().unwrap(), text.into_key().unwrap());
        assert_eq!(uuid.into_key().unwrap(), Some(uuid).into_key().unwrap());
    }
}
