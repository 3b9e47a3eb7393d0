//! Storage of the handler's replies, with which later duplicates are answered.
//!
//! ```
//! use campanile_core::{ConfigError, key};
//! use campanile_idempotency::{IdempotencyLayer, MemoryStore, reply};
//!
//! # fn main() -> Result<(), ConfigError> {
//! // duplicates get the reply of the first run
//! let layer = IdempotencyLayer::new(MemoryStore::new(), "payments", key::header("id"))?
//!     .with_reply(reply::json());
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use campanile_core::{BoxError, IdempotencyKey, Namespace, Record};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a reply into the bytes that the entry keeps, and decodes it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot keep a reply of type `{T}`",
    note = "`reply::json()` keeps what is `Serialize + DeserializeOwned`, `reply::bytes()` keeps `Bytes`; \
            `reply::none()`, the default, keeps nothing"
)]
pub trait ReplyCodec<T> {
    /// Checks that the handler may reply with this value. Called before the entry is completed. The
    /// record is that of the request; requests other than [`Request`](campanile_core::Request) have
    /// none. The default accepts every reply.
    ///
    /// # Errors
    /// An error is treated as the handler's own: the attempt has failed, and classifiers decide
    /// what happens next.
    fn check(&self, _reply: &T, _record: Option<&Record>) -> Result<(), BoxError> {
        Ok(())
    }

    /// Encodes a reply. `None` means that nothing is kept.
    ///
    /// # Errors
    /// On an error, the entry is completed without a reply and a warning is logged, because the
    /// effect has already happened.
    fn encode(&self, reply: &T) -> Result<Option<Bytes>, BoxError>;

    /// Decodes a reply. `None` means that there is no reply.
    ///
    /// # Errors
    /// On an error, the duplicate is answered without a reply, and a warning is logged.
    fn decode(&self, bytes: Bytes) -> Result<Option<T>, BoxError>;
}

/// Encrypts and decrypts replies and the results of [steps](campanile_core::LockHandle::step), so that they
/// are not readable in the store; see
/// [`IdempotencyLayer::with_reply_encryption`](crate::IdempotencyLayer::with_reply_encryption).
///
/// Authenticate the namespace and the key together with the reply, so that an attacker with write
/// access to the store cannot use the reply of one key for another. Such an attacker can still
/// complete keys without a reply; only the store's access control prevents that.
///
/// ```
/// use campanile_core::{BoxError, IdempotencyKey, Namespace};
/// use campanile_idempotency::reply::ReplyCipher;
/// use bytes::Bytes;
/// use chacha20poly1305::aead::{Aead, Generate, Key, KeyInit, Payload};
/// use chacha20poly1305::{XChaCha20Poly1305, XNonce};
///
/// struct Sealed(XChaCha20Poly1305);
///
/// /// The associated data that binds a reply to its key.
/// fn of(namespace: &Namespace, key: &IdempotencyKey) -> Vec<u8> {
///     [namespace.as_str().as_bytes(), b"/", key.as_bytes()].concat()
/// }
///
/// impl ReplyCipher for Sealed {
///     fn seal(&self, namespace: &Namespace, key: &IdempotencyKey, reply: Bytes) -> Result<Bytes, BoxError> {
///         let nonce = XNonce::generate();
///         let payload = Payload { msg: &reply, aad: &of(namespace, key) };
///         let sealed = self.0.encrypt(&nonce, payload).map_err(|_| "the reply cannot be sealed")?;
///         Ok([&nonce[..], &sealed].concat().into())
///     }
///
///     fn open(&self, namespace: &Namespace, key: &IdempotencyKey, sealed: Bytes) -> Result<Bytes, BoxError> {
///         let (nonce, msg) = sealed.split_at_checked(24).ok_or("too short to be sealed")?;
///         let payload = Payload { msg, aad: &of(namespace, key) };
///         let reply = self.0.decrypt(&XNonce::try_from(nonce)?, payload).map_err(|_| "not sealed for this key")?;
///         Ok(reply.into())
///     }
/// }
///
/// # fn main() -> Result<(), BoxError> {
/// // a real application loads the key from its secret store
/// let cipher = Sealed(XChaCha20Poly1305::new(&Key::<XChaCha20Poly1305>::generate()));
/// let namespace = "payments".try_into()?;
/// let key = |id| IdempotencyKey::new(id).expect("not empty");
/// let sealed = cipher.seal(&namespace, &key("p-1"), "receipt 7".into())?;
/// assert_eq!(cipher.open(&namespace, &key("p-1"), sealed.clone())?, "receipt 7");
/// assert!(cipher.open(&namespace, &key("p-2"), sealed).is_err());
/// # Ok(())
/// # }
/// ```
pub trait ReplyCipher: Send + Sync + 'static {
    /// Encrypts an encoded reply, or the name and the result of a step.
    ///
    /// # Errors
    /// On an error, the entry is completed without a reply and a warning is logged, or the step is not
    /// recorded, which is an error of the handler. Nothing is kept in plain text.
    fn seal(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        reply: Bytes,
    ) -> Result<Bytes, BoxError>;

    /// Decrypts the result of [`seal`](Self::seal).
    ///
    /// # Errors
    /// On an error, the duplicate is answered without a reply, and a warning is logged, or the step fails
    /// without running.
    fn open(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        sealed: Bytes,
    ) -> Result<Bytes, BoxError>;
}

/// Keeps no reply: duplicates have none. The default.
pub fn none() -> NoReply {
    NoReply
}

/// Keeps the reply as JSON, encoded with serde.
pub fn json() -> JsonReply {
    JsonReply
}

/// Keeps the bytes of the reply.
pub fn bytes() -> BytesReply {
    BytesReply
}

/// The codec returned by [`none`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReply;

impl<T> ReplyCodec<T> for NoReply {
    fn encode(&self, _: &T) -> Result<Option<Bytes>, BoxError> {
        Ok(None)
    }

    fn decode(&self, _: Bytes) -> Result<Option<T>, BoxError> {
        Ok(None)
    }
}

/// The codec returned by [`json`].
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonReply;

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> ReplyCodec<T> for JsonReply {
    fn encode(&self, reply: &T) -> Result<Option<Bytes>, BoxError> {
        Ok(Some(serde_json::to_vec(reply)?.into()))
    }

    fn decode(&self, bytes: Bytes) -> Result<Option<T>, BoxError> {
        Ok(Some(serde_json::from_slice(&bytes)?))
    }
}

/// The codec returned by [`bytes()`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesReply;

impl ReplyCodec<Bytes> for BytesReply {
    fn encode(&self, reply: &Bytes) -> Result<Option<Bytes>, BoxError> {
        Ok(Some(reply.clone()))
    }

    fn decode(&self, bytes: Bytes) -> Result<Option<Bytes>, BoxError> {
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reply_is_not_an_empty_one() {
        assert_eq!(none().encode(&7).unwrap(), None);
        let decoded: Option<u32> = none().decode(Bytes::from_static(b"7")).unwrap();
        assert_eq!(decoded, None);
    }
}
