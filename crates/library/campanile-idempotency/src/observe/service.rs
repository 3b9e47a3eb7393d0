//! The service that observes requests.

use std::fmt;
use std::task::{Context, Poll};

use campanile_core::{KeyExtractor, Locate};
use tower_service::Service;

use super::future::ObserveFuture;
use super::layer::ObserveLayer;
use super::run::{Run, RunOf};

/// Calls the inner service, and observes the request meanwhile. Created by [`ObserveLayer`].
pub struct ObserveService<S, E> {
    inner: S,
    layer: ObserveLayer<E>,
}

impl<S, E> ObserveService<S, E> {
    pub(super) fn new(inner: S, layer: ObserveLayer<E>) -> Self {
        Self { inner, layer }
    }
}

impl<S, R, E> Service<R> for ObserveService<S, E>
where
    R: Locate,
    E: KeyExtractor<R>,
    S: Service<R, Error: fmt::Display>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ObserveFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let of = RunOf::request(&request);
        let key = self.layer.observer.extract_key(&*self.layer.key, &request);
        let mut run = Run::start(&self.layer.observer, key, of);
        let inner = run.catch_panic(|| self.inner.call(request));
        ObserveFuture::new(inner, run)
    }
}

impl<S: Clone, E> Clone for ObserveService<S, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for ObserveService<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}
