//! What the dispatcher hands records to: one service, or one of several.

use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, Record};
use tower_service::Service;

/// Services by number. tower's `Service` is polled ready without its request; here the one that is
/// polled is the one which the record in hand needs.
pub(crate) trait Target: Send + 'static {
    type Response;
    type Error: BoxableError;
    type Future: Future<Output = Result<Self::Response, Self::Error>> + Send + 'static;

    /// Which service this record is for. The numbers are small.
    fn route(&self, record: &Record) -> usize;

    /// Whether that service is ready. An error means that it never will be.
    fn poll_ready(&mut self, route: usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>;

    /// Calls that service, which is ready.
    fn call(&mut self, route: usize, record: Record) -> Self::Future;
}

/// One service for all records.
pub(crate) struct Single<S>(pub(crate) S);

impl<S> Target for Single<S>
where
    S: Service<Record> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn route(&self, _: &Record) -> usize {
        0
    }

    fn poll_ready(&mut self, _: usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, _: usize, record: Record) -> S::Future {
        self.0.call(record)
    }
}
