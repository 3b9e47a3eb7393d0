//! The service that guards requests.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use campanile_core::{
    BoxError, BoxableError, CarryLock, Fingerprint, KeyExtractor, Namespace, Outcome, WithoutLock,
};
use tower_service::Service;

use crate::error::IdempotencyError;
use crate::future::{Pending, ResponseFuture};
use crate::keeper::LockKey;
use crate::layer::IdempotencyLayer;
use crate::policy::OnMissingKey;
use crate::reply::ReplyCodec;

/// Acquires the lock of the key, calls the inner service under it, and records the outcome. Created
/// by [`IdempotencyLayer`].
pub struct IdempotencyService<S, E, C> {
    inner: S,
    layer: IdempotencyLayer<E, C>,
}

/// A service that is `Clone`. Implemented for all such services; it exists for its diagnostic
/// message.
#[diagnostic::on_unimplemented(
    message = "a service inside `IdempotencyLayer` must be `Clone`, and `{Self}` is not",
    note = "derive `Clone` for it, or put `.buffer(n)` of tower's `ServiceBuilder` between them"
)]
pub trait CloneableService: Clone {}

#[diagnostic::do_not_recommend]
impl<S: Clone> CloneableService for S {}

impl<S, E, C> IdempotencyService<S, E, C> {
    pub(crate) fn new(inner: S, layer: IdempotencyLayer<E, C>) -> Self {
        Self { inner, layer }
    }
}

impl<S, R, E, C> Service<R> for IdempotencyService<S, E, C>
where
    R: CarryLock,
    E: KeyExtractor<R>,
    S: Service<R> + CloneableService,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    type Response = Outcome<S::Response>;
    type Error = BoxError;
    type Future = ResponseFuture<S, R, C>;

    /// Polls only the inner service: readiness comes first and the lock second, so that no lock is
    /// held while its request waits for a permit.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The future takes the service that was polled ready. A clone, which is not ready, stays
        // for the next call.
        let not_ready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, not_ready);
        let layer = self.layer.parts();
        match extract_key(&*self.layer.key, &layer.policies.namespace, &request) {
            Ok(Some((key, fingerprint))) => {
                let pending = Pending {
                    service: ready,
                    request,
                    key,
                    fingerprint,
                    _waited: None,
                    waited_elsewhere: false,
                };
                ResponseFuture::acquire(layer, pending)
            }
            Ok(None) => match layer.policies.missing_key {
                OnMissingKey::Reject => ResponseFuture::refuse(layer, IdempotencyError::MissingKey),
                OnMissingKey::PassThrough => {
                    ResponseFuture::unguarded(layer, ready, request, WithoutLock::MissingKey)
                }
            },
            Err(error) => ResponseFuture::refuse(layer, IdempotencyError::InvalidKey(error)),
        }
    }
}

pub(crate) type KeyAndFingerprint = (LockKey, Option<Fingerprint>);

/// Extracts the key of a request, if it has one.
pub(crate) fn extract_key<R, E: KeyExtractor<R>>(
    extractor: &E,
    namespace: &Namespace,
    request: &R,
) -> Result<Option<KeyAndFingerprint>, BoxError> {
    let _span = tracing::trace_span!("key").entered();
    // Turn a panic into an error: an extractor that panics on one record must not stop the
    // consumer.
    catch_unwind(AssertUnwindSafe(|| {
        let Some(key) = extractor.extract(request)? else {
            return Ok(None);
        };
        let key = LockKey::new(namespace.clone(), key);
        Ok(Some((key, extractor.fingerprint(request))))
    }))
    .unwrap_or_else(|_| Err("the key extractor panicked".into()))
}

impl<S: Clone, E, C> Clone for IdempotencyService<S, E, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, E, C> fmt::Debug for IdempotencyService<S, E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}
