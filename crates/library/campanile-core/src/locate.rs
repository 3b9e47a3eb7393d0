//! Requests with a position in Kafka.

use crate::{Coordinates, Record, Request, WithLock};

/// A request that may say which record it is for. A layer that only observes (`ObserveLayer`) needs the
/// position to tell a redelivery from another record with the same key.
///
/// Implement it for your own request types. Without a position, duplicates are reported with an unknown
/// origin.
#[diagnostic::on_unimplemented(
    message = "`ObserveLayer` does not know which record a `{Self}` is for",
    note = "implement `Locate` for it; with an empty implementation, the position is unknown"
)]
pub trait Locate {
    /// Returns the position of the record. The default is `None`, for requests without a record.
    fn coordinates(&self) -> Option<Coordinates> {
        self.record().map(|record| record.coordinates().clone())
    }

    /// The driver marks a drop as an interruption, and not as a failure, in the record.
    #[doc(hidden)]
    fn record(&self) -> Option<&Record> {
        None
    }
}

impl Locate for Record {
    fn record(&self) -> Option<&Record> {
        Some(self)
    }
}

impl<B> Locate for Request<B> {
    fn record(&self) -> Option<&Record> {
        Some(Request::record(self))
    }
}

impl<B> Locate for http::Request<B> {}

impl<T> Locate for WithLock<T> {}
