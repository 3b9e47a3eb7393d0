//! The response future of [`DecodeService`](super::DecodeService).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::DecodeError;
use crate::BoxError;

pin_project! {
    /// The response of a [`DecodeService`](super::DecodeService).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        state: ResponseState<F>,
    }
}

pin_project! {
    #[project = ResponseStateProj]
    #[derive(Debug)]
    enum ResponseState<F> {
        // The body was decoded; the inner service is running.
        Inner { #[pin] future: F },
        // Decoding failed; contains the error until it is returned.
        Refused { error: Option<DecodeError> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn inner(future: F) -> Self {
        Self { state: ResponseState::Inner { future } }
    }

    pub(super) fn refused(error: DecodeError) -> Self {
        Self { state: ResponseState::Refused { error: Some(error) } }
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            ResponseStateProj::Inner { future } => {
                Poll::Ready(ready!(future.poll(cx)).map_err(Into::into))
            }
            ResponseStateProj::Refused { error } => {
                Poll::Ready(Err(error.take().expect("polled after completion").into()))
            }
        }
    }
}
