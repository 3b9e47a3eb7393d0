//! Conversion of a closure's return value into a key.

use bytes::Bytes;

use crate::{BoxError, IdempotencyKey};

/// Converts into an idempotency key: strings and bytes are used unchanged, integers in decimal.
///
/// Empty values and `None` are missing keys. `Err` is an invalid key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an idempotency key",
    note = "return a `String`, `Bytes`, `Vec<u8>`, an integer, or an `Option` or `Result` of one; \
            for a borrowed field use `key::field`"
)]
pub trait IntoKey {
    /// Returns the key, or `None` if it is missing.
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
