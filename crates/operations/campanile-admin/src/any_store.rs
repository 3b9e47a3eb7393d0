//! A connected store of any kind.

use std::num::NonZeroUsize;
use std::time::Duration;

use campanile_core::{Answer, Command, Entry, ExpireOutcome, StoreKey};
use campanile_idempotency::{
    ExpireStore, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, Store, StoreError,
};
use campanile_postgres::PgStore;
use campanile_redis::RedisStore;
use futures_util::FutureExt;

/// A connected store of any kind. Created by [`StoreConfig::connect`](crate::StoreConfig::connect).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// Redis: a single server, the primary behind sentinels, or a cluster.
    Redis(RedisStore),
    /// Postgres.
    Postgres(PgStore),
}

/// Calls the store. The futures are boxed, because the callers' futures would contain both.
macro_rules! call {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Redis($store) => $call.boxed().await,
            AnyStore::Postgres($store) => $call.boxed().await,
        }
    };
}

impl Store for AnyStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        call!(self, store => store.apply(command))
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        call!(self, store => store.apply_batch(batch))
    }

    fn max_batch(&self) -> NonZeroUsize {
        match self {
            Self::Redis(store) => store.max_batch(),
            Self::Postgres(store) => store.max_batch(),
        }
    }

    fn max_call_duration(&self) -> Option<Duration> {
        match self {
            Self::Redis(store) => store.max_call_duration(),
            Self::Postgres(store) => store.max_call_duration(),
        }
    }

    fn for_renewals(&self) -> Self {
        match self {
            Self::Redis(store) => Self::Redis(store.for_renewals()),
            Self::Postgres(store) => Self::Postgres(store.for_renewals()),
        }
    }
}

impl InspectStore for AnyStore {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        call!(self, store => store.inspect(key))
    }

    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        call!(self, store => store.scan(filter, cursor))
    }
}

impl ExpireStore for AnyStore {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        call!(self, store => store.expire(entries, after))
    }
}
