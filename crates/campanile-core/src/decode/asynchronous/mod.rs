//! Decoding that has to wait: for the schema of a payload, say.

mod future;
mod layer;
mod service;

use std::future::Future;

use crate::{BoxError, Record};

pub use self::future::DecodingFuture;
pub use self::layer::AsyncDecodeLayer;
pub use self::service::AsyncDecodeService;

/// Makes a body of a record, and may wait for what it needs. Closures `Fn(Record) -> impl Future` of a
/// `Result` are such.
pub trait AsyncDecode {
    /// What it makes.
    type Body;

    /// Why it cannot: see [`decode`](Self::decode).
    type Error: Into<BoxError>;

    /// Makes it. Dropped, it gives up; it is dropped whenever the request is.
    type Future: Future<Output = Result<Self::Body, Self::Error>>;

    /// The body of this record.
    ///
    /// # Errors
    /// As [`Decode::decode`](super::Decode::decode)'s: no further attempt would make the payload
    /// better. What may pass, a schema registry that does not answer say, is marked by
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
