//! Middleware that decodes a record's payload into a request's body.
//!
//! By default, [`DecodeLayer`] goes outside the idempotency layer: records that cannot be decoded
//! never acquire a lock, and the key can come from the body. [`AsyncDecodeLayer`] does the same
//! with an asynchronous decoder.

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

/// Decodes the body of a record. Implemented by closures `Fn(&Record) -> Result<T, E>`.
pub trait Decode {
    /// The type of the decoded body.
    type Body;

    /// Decodes the body of this record.
    ///
    /// # Errors
    /// If the record has no valid body. The error becomes the source of a [`DecodeError`]; its
    /// message should not contain the payload. It is treated as permanent, unless it is marked with
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
