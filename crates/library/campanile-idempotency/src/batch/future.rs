//! The response future of [`BatchService`](super::BatchService).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use campanile_core::BoxError;
use tokio::sync::oneshot;

use super::BatchError;

/// The response future of [`BatchService`](super::BatchService), for one request of a batch.
///
/// # Cancellation
/// If it is dropped while waiting for its batch, the request is not passed to the service. If it is
/// dropped while the batch is running, its result is dropped and the other requests continue. If
/// all futures of a batch are dropped, so is the service's future.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct BatchFuture<T> {
    reply: oneshot::Receiver<Result<T, BoxError>>,
}

impl<T> BatchFuture<T> {
    pub(super) fn new(reply: oneshot::Receiver<Result<T, BoxError>>) -> Self {
        Self { reply }
    }
}

impl<T> Future for BatchFuture<T> {
    type Output = Result<T, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.reply).poll(cx));
        Poll::Ready(reply.unwrap_or_else(|_| Err(BatchError::Interrupted.into())))
    }
}

impl<T> fmt::Debug for BatchFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchFuture").finish_non_exhaustive()
    }
}
