//! What the dispatcher hands records to: one service, or one of several.

use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, Record};
use futures_util::future::{MapOk, TryFutureExt};
use tower_service::Service;

use crate::transaction::Answered;

/// Services by number. tower's `Service` is polled ready without its request; here the one that is
/// polled is the one which the record in hand needs.
pub(crate) trait Target: Send + 'static {
    type Error: BoxableError;
    type Future: Future<Output = Result<Answered, Self::Error>> + Send + 'static;

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
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(S::Response) -> Answered>;

    fn route(&self, _: &Record) -> usize {
        0
    }

    fn poll_ready(&mut self, _: usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, _: usize, record: Record) -> Self::Future {
        self.0.call(record).map_ok(unseen as fn(_) -> _)
    }
}

/// What follows from a response that is not looked at.
fn unseen<T>(_: T) -> Answered {
    Ok(Vec::new())
}
