//! The service that decodes a record before it calls the inner service.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use tower_service::Service;

use super::{Decode, DecodeError, ResponseFuture};
use crate::{BoxError, BoxableError, IntoParts, Request};

/// The error source that replaces the panic of a decoder.
pub(super) const PANICKED: &str = "the decoder panicked";

/// Decodes the record, then calls the inner service. Created by
/// [`DecodeLayer`](super::DecodeLayer).
pub struct DecodeService<S, D, In> {
    inner: S,
    decoder: D,
    input: PhantomData<fn(In)>,
}

impl<S, D, In> DecodeService<S, D, In> {
    pub(super) fn new(inner: S, decoder: D) -> Self {
        Self { inner, decoder, input: PhantomData }
    }
}

// `In` is a parameter of the type and not only of this impl: a service that accepts both records
// and requests would make `svc.ready()` ambiguous.
impl<S, D, In> Service<In> for DecodeService<S, D, In>
where
    In: IntoParts,
    D: Decode,
    S: Service<Request<D::Body>>,
    S::Error: BoxableError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, input: In) -> Self::Future {
        let parts = input.into_request_parts();
        // Turn a panic into an error, or the same record would make the decoder panic forever.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(&parts.record)));
        match decoded.unwrap_or_else(|_| Err(PANICKED.into())) {
            Ok(body) => ResponseFuture::inner(self.inner.call(Request::from_parts(parts, body))),
            Err(source) => ResponseFuture::refused(DecodeError::new(&parts.record, source)),
        }
    }
}

impl<S: Clone, D: Clone, In> Clone for DecodeService<S, D, In> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.decoder.clone())
    }
}

impl<S: fmt::Debug, D, In> fmt::Debug for DecodeService<S, D, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
