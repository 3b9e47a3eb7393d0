//! The response future of an observed request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::run::Run;

pin_project! {
    /// The response future of [`ObserveService`](super::ObserveService). It does what the inner future
    /// does, including its panics.
    ///
    /// # Cancellation
    /// It can be dropped at any time. The inner future is dropped first, and then the attempt is recorded
    /// as failed; on a revoke or shutdown of the driver, it is not counted.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ObserveFuture<F> {
        // Fields are dropped in declaration order, so user code is dropped first.
        #[pin]
        inner: F,
        run: Run,
    }
}

impl<F> ObserveFuture<F> {
    pub(super) fn new(inner: F, run: Run) -> Self {
        Self { inner, run }
    }
}

impl<F, T, E> Future for ObserveFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.run.catch_panic(|| this.inner.poll(cx));
        if let Poll::Ready(result) = &polled {
            this.run.end(result);
        }
        polled
    }
}

impl<F> fmt::Debug for ObserveFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveFuture").finish_non_exhaustive()
    }
}
