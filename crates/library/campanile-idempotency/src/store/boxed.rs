//! A type-erased store.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Store, StoreError};

/// A type-erased [`Store`]. Created by [`Store::boxed`].
#[derive(Clone)]
pub struct BoxStore(Arc<dyn Erased>);

impl BoxStore {
    pub(super) fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

impl Store for BoxStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        self.0.apply_batch(batch).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.0.max_batch()
    }

    fn max_call_duration(&self) -> Option<Duration> {
        self.0.max_call_duration()
    }

    fn for_renewals(&self) -> Self {
        self.0.for_renewals()
    }

    fn boxed(self) -> BoxStore {
        self
    }
}

impl fmt::Debug for BoxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxStore")
    }
}

/// The object-safe version of [`Store`].
trait Erased: Send + Sync {
    fn apply(&self, command: Command) -> BoxFuture<'_, Result<Answer, StoreError>>;
    fn apply_batch(&self, batch: Vec<Command>) -> BoxFuture<'_, Vec<Result<Answer, StoreError>>>;
    fn max_batch(&self) -> NonZeroUsize;
    fn max_call_duration(&self) -> Option<Duration>;
    fn for_renewals(&self) -> BoxStore;
}

impl<S: Store> Erased for S {
    fn apply(&self, command: Command) -> BoxFuture<'_, Result<Answer, StoreError>> {
        Store::apply(self, command).boxed()
    }

    fn apply_batch(&self, batch: Vec<Command>) -> BoxFuture<'_, Vec<Result<Answer, StoreError>>> {
        Store::apply_batch(self, batch).boxed()
    }

    fn max_batch(&self) -> NonZeroUsize {
        Store::max_batch(self)
    }

    fn max_call_duration(&self) -> Option<Duration> {
        Store::max_call_duration(self)
    }

    fn for_renewals(&self) -> BoxStore {
        BoxStore::new(Store::for_renewals(self))
    }
}
