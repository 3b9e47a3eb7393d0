//! Asynchronous decoding, for example if a schema has to be fetched.

mod future;
mod layer;
mod service;

use std::future::Future;

use crate::{BoxError, Record};

pub use self::future::DecodingFuture;
pub use self::layer::AsyncDecodeLayer;
pub use self::service::AsyncDecodeService;

/// Decodes the body of a record asynchronously. Implemented by closures `Fn(Record) -> impl Future`
/// that resolve to a `Result`.
pub trait AsyncDecode {
    /// The type of the decoded body.
    type Body;

    /// The error of the decoder; see [`decode`](Self::decode).
    type Error: Into<BoxError>;

    /// The future that decodes. It is dropped whenever the request is dropped, and must then stop.
    type Future: Future<Output = Result<Self::Body, Self::Error>>;

    /// Decodes the body of this record.
    ///
    /// # Errors
    /// As for [`Decode::decode`](super::Decode::decode), an error is permanent: the payload would
    /// fail again. Mark temporary errors, such as an unavailable schema registry, with
    /// [`retry_after`](crate::error::retry_after).
    fn decode(&self, record: Record) -> Self::Future;
}

impl<F, Fut, T, E> AsyncDecode for F
where
    F: Fn(Record) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Body = T;
    type Error = E;
    type Future = Fut;

    fn decode(&self, record: Record) -> Fut {
        self(record)
    }
}
