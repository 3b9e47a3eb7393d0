//! From a record's payload to a request's body.
//!
//! [`DecodeLayer`] stands outside the idempotency layer by default: what does not decode never
//! takes a lock, and the key can come from the body. [`AsyncDecodeLayer`] is the same for a decoder
//! that has to wait.

mod asynchronous;
mod decoders;
mod error;
mod future;
mod layer;
mod service;

use crate::{BoxError, Record};

pub use self::asynchronous::{AsyncDecode, AsyncDecodeLayer, AsyncDecodeService, DecodingFuture};
pub use self::decoders::{Json, NotJson, Raw, RawBytes, Tombstones};
pub use self::error::DecodeError;
pub use self::future::ResponseFuture;
pub use self::layer::DecodeLayer;
pub use self::service::DecodeService;

/// Makes a body of a record. Closures `Fn(&Record) -> Result<T, E>` are decoders.
pub trait Decode {
    /// What it makes.
    type Body;

    /// The body of this record.
    ///
    /// # Errors
    /// When the record has none; it becomes the source of a [`DecodeError`]. Its text should not
    /// show the payload. No further attempt would mend it, unless it is marked by
    /// [`retry_after`](crate::error::retry_after).
    fn decode(&self, record: &Record) -> Result<Self::Body, BoxError>;
}

impl<F, T, E> Decode for F
where
    F: Fn(&Record) -> Result<T, E>,
    E: Into<BoxError>,
{
    type Body = T;

    fn decode(&self, record: &Record) -> Result<T, BoxError> {
        self(record).map_err(Into::into)
    }
}
