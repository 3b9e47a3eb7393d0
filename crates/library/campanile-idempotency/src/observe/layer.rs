//! [`ObserveLayer`].

use std::fmt;
use std::sync::Arc;

use campanile_core::ConfigError;
use tower_layer::Layer;

use super::observer::Observer;
use super::service::ObserveService;
use crate::config::IdempotencyConfig;
use crate::keeper::IntoKeeper;

/// Reports what an [`IdempotencyLayer`](crate::IdempotencyLayer) would do with each request, and lets
/// every request through. The response and the error are those of the inner service, unchanged.
///
/// Each handler starts at once, and none waits for the store. Meanwhile the layer acquires the key's
/// lock, renews it, and records the outcome in the entry, as the idempotency layer does. So the
/// entries of completed records answer duplicates from the moment at which an `IdempotencyLayer`
/// with the same namespace and extractor replaces this layer.
///
/// ```
/// use campanile_core::{BoxError, Record, key};
/// use campanile_idempotency::{MemoryStore, ObserveLayer};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = ServiceBuilder::new()
///     // counts what would be answered as a duplicate, and changes nothing
///     .layer(ObserveLayer::new(MemoryStore::new(), "payments", key::header("id"))?)
///     .service_fn(async |_: Record| Ok::<_, BoxError>("done"));
///
/// let record = Record::builder("payments", 0, 7).header("id", "p-1").build();
/// for _ in 0..2 {
///     assert_eq!(service.ready().await?.call(record.clone()).await?, "done");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Differences from the idempotency layer
///
/// * Attempts never run out, and nothing is given up. A failed attempt is recorded without a backoff.
/// * A COMPLETED entry always keeps its details (see
///   [`with_completed_details`](IdempotencyConfig::with_completed_details)), because only they tell a
///   redelivery from a record that was produced twice.
/// * No reply is kept.
///
/// # Limits
///
/// At most 4096 observations are unfinished at a time, including the handlers that run; the layer
/// counts further requests as not observed. The same holds for requests outside of a tokio runtime.
///
/// If the store does not answer, a handler that has succeeded is recorded once it does. In a long outage,
/// up to 2048 of them wait for that; the others have no entry, or one that looks interrupted.
#[must_use]
pub struct ObserveLayer<E> {
    pub(super) observer: Observer,
    pub(super) key: Arc<E>,
}

impl<E> ObserveLayer<E> {
    /// Creates a layer over a store, for which it starts a keeper, or over an existing keeper.
    /// `config` may be just the name of a namespace. The extractor `key` finds a request's key. Use
    /// those of the later `IdempotencyLayer`.
    ///
    /// # Errors
    /// If a setting is out of its bounds, or if the keeper's thread cannot be started.
    pub fn new(
        store: impl IntoKeeper,
        config: impl Into<IdempotencyConfig>,
        key: E,
    ) -> Result<Self, ConfigError>
    where
        E: Send + Sync + 'static,
    {
        Ok(Self { observer: Observer::new(store, config)?, key: Arc::new(key) })
    }
}

impl<S, E> Layer<S> for ObserveLayer<E> {
    type Service = ObserveService<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        ObserveService::new(inner, self.clone())
    }
}

impl<E> Clone for ObserveLayer<E> {
    fn clone(&self) -> Self {
        Self { observer: self.observer.clone(), key: self.key.clone() }
    }
}

impl<E> fmt::Debug for ObserveLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObserveLayer").field(&self.observer).finish()
    }
}
