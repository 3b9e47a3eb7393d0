//! The response future, which decodes first and then runs the inner service.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::decode::DecodeError;
use crate::decode::service::PANICKED;
use crate::{BoxError, BoxableError, Parts, Record, Request};

pin_project! {
    /// The response future of [`AsyncDecodeService`](super::AsyncDecodeService).
    ///
    /// # Cancellation
    /// If it is dropped while decoding, the decoder's future is dropped and the inner service's
    /// readiness is returned; there are no other effects. After that, dropping it drops the inner
    /// service's future.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct DecodingFuture<F, S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: ResponseState<F, S, B>,
    }
}

pin_project! {
    #[project = ResponseStateProj]
    enum ResponseState<F, S, B>
    where
        S: Service<Request<B>>,
    {
        // The decoder is running; the inner service is ready.
        Decoding {
            #[pin]
            decoding: F,
            pending: Option<(S, Parts)>,
        },
        // The body was decoded; the inner service is running.
        Inner {
            #[pin]
            future: S::Future,
        },
        // Decoding failed; contains the error until it is returned.
        Refused {
            error: Option<DecodeError>,
        },
    }
}

impl<F, S: Service<Request<B>>, B> DecodingFuture<F, S, B> {
    pub(super) fn new(decoding: F, ready: S, parts: Parts) -> Self {
        Self { state: ResponseState::Decoding { decoding, pending: Some((ready, parts)) } }
    }

    pub(super) fn panicked(record: &Record) -> Self {
        Self { state: ResponseState::refused(record, PANICKED.into()) }
    }
}

impl<F, S: Service<Request<B>>, B> ResponseState<F, S, B> {
    fn refused(record: &Record, source: BoxError) -> Self {
        Self::Refused { error: Some(DecodeError::new(record, source)) }
    }
}

impl<F, S, B, E> Future for DecodingFuture<F, S, B>
where
    F: Future<Output = Result<B, E>>,
    E: Into<BoxError>,
    S: Service<Request<B>>,
    S::Error: BoxableError,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                ResponseStateProj::Decoding { decoding, pending } => {
                    // Turn a panic into an error, or the same record would make the decoder panic
                    // forever.
                    let polled = catch_unwind(AssertUnwindSafe(|| decoding.poll(cx)));
                    let decoded = match polled {
                        Ok(polled) => ready!(polled).map_err(Into::into),
                        Err(_) => Err(PANICKED.into()),
                    };
                    let (mut ready, parts) =
                        pending.take().expect("taken only once, after decoding");
                    match decoded {
                        Ok(body) => ResponseState::Inner {
                            future: ready.call(Request::from_parts(parts, body)),
                        },
                        Err(source) => ResponseState::refused(&parts.record, source),
                    }
                }
                ResponseStateProj::Inner { future } => {
                    return Poll::Ready(ready!(future.poll(cx)).map_err(Into::into));
                }
                ResponseStateProj::Refused { error } => {
                    let error = error.take().expect("polled after completion");
                    return Poll::Ready(Err(error.into()));
                }
            };
            state.set(next);
        }
    }
}

impl<F, S: Service<Request<B>>, B> fmt::Debug for DecodingFuture<F, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ResponseState::Decoding { .. } => "Decoding",
            ResponseState::Inner { .. } => "Inner",
            ResponseState::Refused { .. } => "Refused",
        };
        f.debug_struct("DecodingFuture").field("state", &state).finish_non_exhaustive()
    }
}
