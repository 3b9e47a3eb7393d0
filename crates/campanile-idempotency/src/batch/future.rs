//! The response future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use campanile_core::BoxError;
use tokio::sync::oneshot;

use super::Places;

/// The response of a [`BatchService`](super::BatchService): one request's result.
///
/// # Cancellation
/// Dropped while it waits for its batch, its request is not handed to the service. Dropped while the
/// batch is at work, its result is dropped, and the others go on; when all of a batch are dropped, so is
/// the service's future.
pub struct BatchFuture<T> {
    reply: oneshot::Receiver<Result<T, BoxError>>,
    places: Arc<Places>,
}

impl<T> BatchFuture<T> {
    pub(super) fn new(reply: oneshot::Receiver<Result<T, BoxError>>, places: Arc<Places>) -> Self {
        Self { reply, places }
    }
}

impl<T> Future for BatchFuture<T> {
    type Output = Result<T, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.reply).poll(cx));
        Poll::Ready(reply.unwrap_or_else(|_| Err(self.places.why().into())))
    }
}

impl<T> fmt::Debug for BatchFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchFuture").finish_non_exhaustive()
    }
}
