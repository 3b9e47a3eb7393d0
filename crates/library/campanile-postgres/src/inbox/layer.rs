//! The layer of the inbox.

use std::fmt;
use std::sync::Arc;

use campanile_idempotency::reply::NoReply;
use campanile_idempotency::{IdempotencyLayer, IdempotencyService};
use tower_layer::Layer;

use super::Inbox;
use super::service::InboxService;

/// An [`IdempotencyLayer`] with handlers in transactions, each committed together with the
/// completion of its entry. Created by [`Inbox::layer`].
#[must_use]
pub struct InboxLayer<E, C = NoReply> {
    inbox: Inbox,
    layer: Arc<IdempotencyLayer<E, C>>,
}

impl<E, C> InboxLayer<E, C> {
    pub(super) fn new(inbox: Inbox, layer: IdempotencyLayer<E, C>) -> Self {
        Self { inbox, layer: Arc::new(layer) }
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(super) fn inner(&self) -> &IdempotencyLayer<E, C> {
        &self.layer
    }
}

impl<S, E, C> Layer<S> for InboxLayer<E, C> {
    type Service = IdempotencyService<InboxService<S, E, C>, E, C>;

    fn layer(&self, inner: S) -> Self::Service {
        self.layer.layer(InboxService::new(inner, self.inbox.clone(), self.layer.clone()))
    }
}

impl<E, C> Clone for InboxLayer<E, C> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), layer: self.layer.clone() }
    }
}

impl<E, C> fmt::Debug for InboxLayer<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxLayer")
            .field("inbox", &self.inbox)
            .field("layer", &self.layer)
            .finish()
    }
}
