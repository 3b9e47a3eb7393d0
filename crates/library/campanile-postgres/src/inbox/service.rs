//! The service between the idempotency layer and the handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, CarryLock};
use campanile_idempotency::{CloneableService, IdempotencyLayer, ReplyCodec};
use tower_service::Service;

use super::Inbox;
use super::run::Run;
use super::transaction::CarryTransaction;

/// Runs the handler in a transaction that is committed together with the entry. Created by
/// [`InboxLayer`](super::InboxLayer), directly inside the idempotency layer.
pub struct InboxService<S, E, C> {
    inner: S,
    inbox: Inbox,
    layer: Arc<IdempotencyLayer<E, C>>,
}

/// A request that is `Clone`. Implemented for all requests that are; exists only for its compiler
/// message.
#[diagnostic::on_unimplemented(
    message = "an inbox may run a handler again, so its request must be `Clone`, and `{Self}` is not",
    note = "derive `Clone` for its body"
)]
pub trait CloneableRequest: Clone {}

#[diagnostic::do_not_recommend]
impl<R: Clone> CloneableRequest for R {}

impl<S, E, C> InboxService<S, E, C> {
    pub(super) fn new(inner: S, inbox: Inbox, layer: Arc<IdempotencyLayer<E, C>>) -> Self {
        Self { inner, inbox, layer }
    }
}

impl<S, R, E, C> Service<R> for InboxService<S, E, C>
where
    R: CarryLock + CarryTransaction + CloneableRequest + Send + 'static,
    S: Service<R> + CloneableService + Send + 'static,
    S::Response: Send,
    S::Error: BoxableError,
    S::Future: Send,
    E: Send + Sync + 'static,
    C: ReplyCodec<S::Response> + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The service that was polled ready must handle the request.
        let not_ready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, not_ready);
        let run = Run::new(self.inbox.clone(), self.layer.clone(), request.lock().ok().cloned());
        Box::pin(run.process(ready, request))
    }
}

impl<S: Clone, E, C> Clone for InboxService<S, E, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), inbox: self.inbox.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, E, C> fmt::Debug for InboxService<S, E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxService")
            .field("inner", &self.inner)
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}
