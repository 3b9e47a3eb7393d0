//! The transactional inbox.
//!
//! * [`Inbox`] → [`InboxLayer`] → [`InboxService`], directly inside the idempotency layer's service; or
//!   [`InboxGuard`], around a plain function.
//! * `run`: one request, until its transaction is committed or its failure is its own; `open`: one
//!   transaction, from BEGIN to its end.
//! * [`Transaction`] is what the handler has of it; [`InboxError`] why it was rolled back.

mod error;
mod guard;
mod isolation;
mod layer;
mod open;
mod run;
mod service;
mod transaction;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{ConfigError, Namespace};
use campanile_idempotency::{IdempotencyLayer, LockKeeper, StoreError};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::error::InboxError;
use self::error::Opinion;
pub use self::guard::InboxGuard;
pub use self::isolation::Isolation;
pub use self::layer::InboxLayer;
pub use self::service::{CloneableRequest, InboxService};
pub use self::transaction::{CarryTransaction, Connection, Transaction, TransactionError};
use crate::outbox::Outgoing;
use crate::pool::Pool;
use crate::seldom::Seldom;
use crate::{PgConfig, PgStore};

/// Runs handlers in transactions of Postgres, each of which is committed together with the completion of
/// its entry: **one effect in this database for each key**, whatever dies. What a handler commits by itself
/// is the exception: it stays, and [is not run again](InboxError::EndedByHandler).
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, key};
/// use campanile_idempotency::IdempotencyLayer;
/// use campanile_postgres::{Inbox, PgStore, Transaction};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// #[derive(Clone, serde::Deserialize)]
/// struct Booking { id: String, cents: i64 }
///
/// async fn book(request: Request<Booking>) -> Result<(), BoxError> {
///     let Booking { id, cents } = request.body();
///     let transaction = Transaction::of(&request)?;
///     transaction.execute("INSERT INTO ledger VALUES ($1, $2)", &[id, cents]).await?;
///     Ok(())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), BoxError> {
/// # let postgres = campanile_test::PgServer::start()?;
/// # campanile_postgres::migrate(postgres.url()).await?;
/// # postgres.psql("CREATE TABLE ledger (id text, cents bigint)")?;
/// # let url = postgres.url();
/// // one for the process
/// let inbox = Inbox::new(&PgStore::connect(url).await?)?;
/// let bookings = IdempotencyLayer::new(inbox.keeper(), "ledger", key::field(|b: &Booking| &b.id))?;
/// let mut service = ServiceBuilder::new()
///     // what does not decode never takes a lock
///     .layer(DecodeLayer::json())
///     // one lock for each booking, which is committed together with its completion
///     .layer(inbox.layer(bookings)?)
///     .service_fn(book);
///
/// let record = Record::builder("bookings", 0, 7).payload(r#"{"id":"b-1","cents":100}"#).build();
/// assert_eq!(service.ready().await?.call(record.clone()).await?, Outcome::Processed(()));
/// assert!(service.ready().await?.call(record).await?.is_duplicate());
/// # assert_eq!(postgres.psql("SELECT * FROM ledger")?, "b-1|100");
/// # Ok(())
/// # }
/// ```
///
/// # What is one transaction, and what is not
/// The handler's writes through its [`Transaction`] and the completion, with the reply if one is kept, are
/// one. The acquire, renewals and failures commit by themselves, so that attempts and crashes are counted
/// although what the handler wrote is rolled back. The entry's row is written last, so that no renewal
/// waits for a handler. A layer inside, such as a time-out, acts before the commit.
///
/// A reply that may not be kept for its size fails the attempt where that is the policy, and rolls back.
///
/// # When the handler runs again
/// In a new transaction, under the same lock and as the same attempt, after a short back-off: when its
/// transaction met another (`40001`, `40P01`), in a statement or at the commit, when a statement was prepared
/// before its table was altered, and when its connection broke before the commit. So it needs to be `Clone`, as its request, and what it does **outside** the
/// transaction happens again then, as after a crash.
///
/// BEGIN is sent together with its first statement. One that is not answered within the store's command
/// timeout drops the handler, and is such a connection.
///
/// A commit that was not answered is not run again, but looked after: the entry says whether it took place.
/// Of all transactions of a lock only the one is ever committed that makes the entry COMPLETED; one that
/// comes too late rolls itself back.
///
/// # Connections
/// A transaction has one, of a pool beside the store's, as long as its handler runs; one for which none
/// comes free in time hands its attempt back. A connection is given back after `COMMIT` or `ROLLBACK`, and
/// closed when the handler was dropped or has panicked: a transaction is never left open in the pool. A
/// statement at work then is ended by the server within a second; PostgreSQL 14 can do that on Linux only,
/// later ones on all but Windows, and others refuse the connection.
///
/// What a handler sets for its session (`SET` without `LOCAL`, `SET ROLE`, `LISTEN`, an advisory lock, a
/// temporary table) is there for the next handler on that connection. `RESET ALL` looks as if the transaction
/// had been ended, and who changes the role resets it before the answer. Outside of the inbox's transactions a connection only reads
/// (`default_transaction_read_only`).
///
/// Statements have no time-out but the server's; set one in the URL
/// (`?options=-c%20statement_timeout%3D10s`) or by a layer inside.
///
/// # Limits
/// The transaction is one of `tokio_postgres`; there is none for `sqlx` or another library: with those, keep
/// entries in a plain [`PgStore`], and let a unique row, as the repository's `examples/sqlx.rs` does, or the
/// fencing token refuse the second effect. Write
/// what is shared over `&impl GenericClient`, which [`Connection`] leads to. Effects elsewhere, a call over the
/// network among them, are as without an inbox; messages for Kafka can be [committed with the
/// rest](Transaction::publish), and are published then.
///
/// A batch layer inside has a transaction for **each** of its requests: two of one batch that write the same
/// row wait for each other, and Postgres sees no deadlock in that.
///
/// A commit, with what is deferred until then, may take as long as a lock lives without a renewal, because
/// renewals wait for it; without a lock, as the store's
/// [command timeout](crate::PgConfig::with_command_timeout).
#[derive(Clone)]
pub struct Inbox {
    shared: Arc<Shared>,
    keeper: LockKeeper,
    told: Arc<Mutex<Seldom>>,
    /// Told of each commit that has written a message to the outbox.
    written: Arc<Notify>,
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
        Ok(Self { shared: Arc::new(shared), keeper, told: Arc::default(), written: Arc::default() })
    }

    /// The most transactions at a time. Default: 16. A handler for which there is no connection waits
    /// under its lock, so take as many as there are records in flight, or limit those. The server, and the
    /// role, must allow them all, beside the store's.
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
        Ok(InboxLayer::new(self.clone(), layer.with_classifier(Opinion)))
    }

    /// Runs plain functions in transactions, each once for its key of this namespace. For other settings
    /// make an [`InboxGuard`] from a [`layer`](Self::layer).
    ///
    /// # Errors
    /// As [`IdempotencyLayer::new`]'s.
    pub fn guard<N>(&self, namespace: N) -> Result<InboxGuard, ConfigError>
    where
        N: TryInto<Namespace, Error: Into<ConfigError>>,
    {
        Ok(self.layer(IdempotencyLayer::new(&self.keeper, namespace, ())?)?.into())
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

    /// Tells why handlers have to wait, not each time.
    fn tell(&self, error: &StoreError) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_due(Instant::now()) {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "handlers wait for connections: `Inbox::with_connections` says how many there are, \
                 beside the store's, and the server or the role may allow fewer"
            );
        }
    }

    /// What this has written is committed.
    fn announce(&self, outgoing: &Outgoing) {
        if outgoing.has_any() {
            self.written.notify_one();
        }
    }

    pub(crate) fn written(&self) -> &Arc<Notify> {
        &self.written
    }

    pub(crate) fn config(&self) -> &PgConfig {
        &self.shared.store.0.config
    }

    /// What BEGIN and each end of a transaction may take.
    fn limit(&self) -> Duration {
        self.config().command_timeout
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
