//! The transactional inbox.

mod error;
mod isolation;
mod layer;
mod open;
mod run;
mod service;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::ConfigError;
use campanile_idempotency::{IdempotencyLayer, LockKeeper};

use self::error::Blameless;
pub use self::error::InboxError;
pub use self::isolation::Isolation;
pub use self::layer::InboxLayer;
pub use self::service::InboxService;
pub use self::transaction::{CarryTransaction, Connection, Transaction, TransactionError};
use crate::PgStore;
use crate::pool::Pool;

/// Runs handlers in transactions of Postgres that are committed together with the completion of their
/// entries.
#[derive(Clone)]
pub struct Inbox {
    shared: Arc<Shared>,
    keeper: LockKeeper,
}

#[derive(Clone)]
struct Shared {
    store: PgStore,
    pool: Pool,
    isolation: Isolation,
    max_wait: Duration,
    max_reruns: u32,
}

impl Inbox {
    /// An inbox in the database of this store, with a lock keeper of its own and at most 16 connections
    /// for transactions, beside the store's.
    ///
    /// # Errors
    /// If the keeper's thread cannot be started.
    pub fn new(store: &PgStore) -> Result<Self, ConfigError> {
        let keeper = LockKeeper::new(store.clone())?;
        let pool = pool(store, 16)?;
        let shared = Shared {
            store: store.clone(),
            pool,
            isolation: Isolation::default(),
            max_wait: Duration::from_secs(10),
            max_reruns: 10,
        };
        Ok(Self { shared: Arc::new(shared), keeper })
    }

    /// The most transactions at a time. Default: 16. A handler for which there is no connection waits
    /// under its lock, so take as many as there are records in flight, or limit those.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_connections(mut self, connections: usize) -> Result<Self, ConfigError> {
        if connections == 0 {
            return Err(ConfigError::new("an inbox without a connection runs no handler"));
        }
        let pool = pool(&self.shared.store, connections)?;
        Arc::make_mut(&mut self.shared).pool = pool;
        Ok(self)
    }

    /// How long a handler waits for a connection; then its attempt is handed back. Default: 10 s.
    pub fn with_max_wait(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.shared).max_wait = wait;
        self
    }

    /// The isolation level. Default: read committed.
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        Arc::make_mut(&mut self.shared).isolation = isolation;
        self
    }

    /// How often a handler is run again, under the same lock and as the same attempt, because its
    /// transaction met another or its connection broke. Default: 10, with a back-off of 10 ms doubling to
    /// 1 s with full jitter, which is some seconds: as long as a restart of the server.
    pub fn with_max_reruns(mut self, reruns: u32) -> Self {
        Arc::make_mut(&mut self.shared).max_reruns = reruns;
        self
    }

    /// The keeper of its locks, for the layers that it is to work with.
    pub fn keeper(&self) -> &LockKeeper {
        &self.keeper
    }

    /// Runs the handlers of this layer in transactions.
    ///
    /// # Errors
    /// If the locks of the layer are not kept by [this keeper](Self::keeper).
    pub fn layer<E, C>(
        &self,
        layer: IdempotencyLayer<E, C>,
    ) -> Result<InboxLayer<E, C>, ConfigError> {
        if !layer.is_kept_by(&self.keeper) {
            return Err(ConfigError::new(
                "the layer's entries must be in the inbox's database: make it of `inbox.keeper()`",
            ));
        }
        Ok(InboxLayer::new(self.clone(), layer.with_classifier(Blameless)))
    }

    fn store(&self) -> &PgStore {
        &self.shared.store
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    fn isolation(&self) -> Isolation {
        self.shared.isolation
    }

    fn max_wait(&self) -> Duration {
        self.shared.max_wait
    }

    fn max_reruns(&self) -> u32 {
        self.shared.max_reruns
    }

    /// What BEGIN and each end of a transaction may take.
    fn limit(&self) -> Duration {
        self.shared.store.0.config.command_timeout
    }
}

fn pool(store: &PgStore, connections: usize) -> Result<Pool, ConfigError> {
    let pool = store.0.config.transactions(connections);
    pool.map_err(|error| ConfigError::new(error.to_string()))
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("store", &self.shared.store)
            .field("isolation", &self.shared.isolation)
            .finish_non_exhaustive()
    }
}
