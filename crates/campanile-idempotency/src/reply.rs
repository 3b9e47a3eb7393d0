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
use campanile_core::BoxError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Turns a reply into the bytes that the entry keeps, and back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot keep a reply of type `{T}`",
    note = "`reply::json()` keeps what is `Serialize + DeserializeOwned`, `reply::bytes()` keeps `Bytes`; \
            `reply::none()`, the default, keeps nothing"
)]
pub trait ReplyCodec<T> {
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
