//! The service that decodes asynchronously before it calls the inner service.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use tower_service::Service;

use super::{AsyncDecode, DecodingFuture};
use crate::{BoxError, BoxableError, IntoParts, Request};

/// Decodes the record, then calls the inner service. Created by
/// [`AsyncDecodeLayer`](super::AsyncDecodeLayer).
pub struct AsyncDecodeService<S, D, In> {
    inner: S,
    decoder: D,
    input: PhantomData<fn(In)>,
}

impl<S, D, In> AsyncDecodeService<S, D, In> {
    pub(super) fn new(inner: S, decoder: D) -> Self {
        Self { inner, decoder, input: PhantomData }
    }
}

impl<S, D, In> Service<In> for AsyncDecodeService<S, D, In>
where
    In: IntoParts,
    D: AsyncDecode,
    S: Service<Request<D::Body>> + Clone,
    S::Error: BoxableError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = DecodingFuture<D::Future, S, D::Body>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, input: In) -> Self::Future {
        let parts = input.into_request_parts();
        // The future takes the service that was polled ready. A clone, which is not ready, stays
        // for the next call.
        let not_ready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, not_ready);
        let decode = AssertUnwindSafe(|| self.decoder.decode(parts.record.clone()));
        match catch_unwind(decode) {
            Ok(decoding) => DecodingFuture::new(decoding, ready, parts),
            Err(_) => DecodingFuture::panicked(&parts.record),
        }
    }
}

impl<S: Clone, D: Clone, In> Clone for AsyncDecodeService<S, D, In> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.decoder.clone())
    }
}

impl<S: fmt::Debug, D, In> fmt::Debug for AsyncDecodeService<S, D, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDecodeService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
