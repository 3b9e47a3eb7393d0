//! What of a handler's answer is kept, to be given to later duplicates.
//!
//! ```
//! use campanile_core::{ConfigError, key};
//! use campanile_idempotency::{IdempotencyLayer, MemoryStore, reply};
//!
//! # fn main() -> Result<(), ConfigError> {
//! // a duplicate is answered with the first run's reply
//! let layer = IdempotencyLayer::new(MemoryStore::new(), "payments", key::header("id"))?
//!     .with_reply(reply::json());
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use campanile_core::{BoxError, IdempotencyKey, Namespace, Record};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Turns a reply into the bytes that the entry keeps, and back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot keep a reply of type `{T}`",
    note = "`reply::json()` keeps what is `Serialize + DeserializeOwned`, `reply::bytes()` keeps `Bytes`; \
            `reply::none()`, the default, keeps nothing"
)]
pub trait ReplyCodec<T> {
    /// Whether the handler may answer with this: asked before the entry is completed. The record is
    /// that of the request; a request that is not a [`Request`](campanile_core::Request) has none.
    /// Default: it may.
    ///
    /// # Errors
    /// It counts as the handler's own: the attempt has failed, and classifiers say what follows.
    fn check(&self, _reply: &T, _record: Option<&Record>) -> Result<(), BoxError> {
        Ok(())
    }

    /// The bytes to keep; `None` keeps nothing.
    ///
    /// # Errors
    /// The entry is then completed without a reply, and a warning is logged: the effect has happened.
    fn encode(&self, reply: &T) -> Result<Option<Bytes>, BoxError>;

    /// The reply of these bytes; `None`: none can be given.
    ///
    /// # Errors
    /// The duplicate is then answered without a reply, and a warning is logged.
    fn decode(&self, bytes: Bytes) -> Result<Option<T>, BoxError>;
}

/// Encrypts what is kept of replies, and decrypts it, for those who do not want them readable in the
/// store: see [`IdempotencyLayer::with_reply_encryption`](crate::IdempotencyLayer::with_reply_encryption).
///
/// Authenticate namespace and key with the reply, so that nobody who can write to the store can give
/// one key's reply to another. Whoever can do that can also complete keys without a reply; what keeps
/// them out is the store's access control.
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
/// /// What a reply belongs to.
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
/// // a program would take the key from where it keeps its secrets
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
    /// Encrypts an encoded reply.
    ///
    /// # Errors
    /// The entry is then completed without a reply, and a warning is logged: nothing is kept in the
    /// clear.
    fn seal(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        reply: Bytes,
    ) -> Result<Bytes, BoxError>;

    /// Decrypts what [`seal`](Self::seal) made.
    ///
    /// # Errors
    /// The duplicate is then answered without a reply, and a warning is logged.
    fn open(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        sealed: Bytes,
    ) -> Result<Bytes, BoxError>;
}

/// Keeps nothing: a duplicate has no reply. The default.
pub fn none() -> NoReply {
    NoReply
}

/// Keeps the reply as JSON, by serde.
pub fn json() -> JsonReply {
    JsonReply
}

/// Keeps the reply's bytes.
pub fn bytes() -> BytesReply {
    BytesReply
}

/// See [`none`].
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

/// See [`json`].
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

/// See [`bytes()`].
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
