//! The transactional inbox.
//!
//! * [`Inbox`] → [`InboxLayer`] → [`InboxService`], directly inside the idempotency layer's
//!   service; or [`InboxRunner`], around a plain function.
//! * `run` handles one request, until its transaction is committed or the handler fails;
//!   `open_transaction` is one transaction, from BEGIN to its end.
//! * [`Transaction`] is the handle that the handler gets; [`InboxError`] is the reason for a
//!   rollback.

mod error;
mod layer;
mod open_transaction;
mod run;
mod runner;
mod service;
mod transaction;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::ConfigError;
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper, StoreError};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::error::InboxClassifier;
pub use self::error::InboxError;
pub use self::layer::InboxLayer;
pub use self::runner::InboxRunner;
pub use self::service::{CloneableRequest, InboxService};
pub use self::transaction::{CarryTransaction, Connection, Transaction, TransactionError};
use crate::log_limit::LogLimit;
use crate::outbox::MessageCounter;
use crate::pool::Pool;
use crate::{PgConfig, PgStore};

/// Runs handlers in Postgres transactions, each of which is committed together with the completion
/// of its entry: **one effect in this database for each key**, whatever crashes. The exception is a
/// handler that commits by itself: that commit stays, and the handler [is not run
/// again](InboxError::EndedByHandler).
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
///     let transaction = Transaction::from_request(&request)?;
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
/// // one for each process
/// let inbox = Inbox::new(&PgStore::connect(url).await?)?;
/// let bookings = IdempotencyLayer::new(inbox.keeper(), "ledger", key::field(|b: &Booking| &b.id))?;
/// let mut service = ServiceBuilder::new()
///     // records that fail to decode never acquire a lock
///     .layer(DecodeLayer::json())
///     // one lock for each booking; its writes and its completion are one commit
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
/// # What the transaction covers
/// The handler's writes through its [`Transaction`] and the completion, with the reply if one is
/// kept, are one transaction. The acquire, renewals and failures commit separately, so that
/// attempts and crashes are counted although the handler's writes are rolled back. The entry's row
/// is written last, so that no renewal waits for a handler. A layer inside the inbox, such as a
/// timeout, acts before the commit.
///
/// If a reply is too large to keep and the policy fails such an attempt, the transaction is rolled
/// back.
///
/// # When the handler runs again
/// The handler runs again in a new transaction, under the same lock and as the same attempt, after
/// a short backoff, if:
///
/// * its transaction conflicted with another (`40001`, `40P01`), in a statement or at the commit,
/// * a statement was prepared before its table was altered, or
/// * its connection broke before the commit.
///
/// The handler and its request must therefore be `Clone`, and its effects **outside** the
/// transaction then happen again, as after a crash.
///
/// A [step](campanile_core::LockHandle::step) is recorded outside the transaction, so it is for such an
/// effect: it does not happen again if the transaction is rolled back. A write through the transaction
/// must not be part of a step.
///
/// BEGIN is sent together with the handler's first statement. If BEGIN is not answered within the
/// store's command timeout, the handler is dropped and the connection counts as broken.
///
/// If a commit is not answered, the handler does not run again at once: the inbox reads from the
/// entry whether the commit took place. Of all transactions of a lock, only the one that makes the
/// entry COMPLETED is ever committed; a later one rolls itself back.
///
/// # Isolation
/// Each statement sees what was committed before it (read committed). A handler that needs another
/// level sends `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`, or `REPEATABLE READ`, as its first
/// statement. The entry is then a row like any other: if the lock is renewed during the transaction,
/// the transaction cannot be serialized and runs again. Such a handler must therefore take less than
/// a third of the lock's time to live.
///
/// # Connections
/// A transaction uses a connection as long as its handler runs, from a pool separate from the
/// store's. If no connection becomes free in time, the attempt is handed back. A connection returns
/// to the pool after `COMMIT` or `ROLLBACK`, and is closed if the handler was dropped or panicked,
/// so the pool never has an open transaction. If a statement is still running then, the server ends
/// it within a second. PostgreSQL 14 supports that only on Linux and later versions on all
/// platforms but Windows; a server without support rejects the connection.
///
/// Whatever a handler sets for its session (`SET` without `LOCAL`, `SET ROLE`, `LISTEN`, an
/// advisory lock, a temporary table) remains for the next handler on that connection. `RESET ALL`
/// looks as if the handler had ended the transaction, and a handler that changes its role must
/// reset it before it returns. Outside of the inbox's transactions a connection is read-only
/// (`default_transaction_read_only`).
///
/// Statements have no timeout but the server's. Set one in the URL
/// (`?options=-c%20statement_timeout%3D10s`) or with a layer inside the inbox.
///
/// # Limits
/// The transaction is one of `tokio_postgres`; `sqlx` and other libraries are not supported. With
/// those, keep entries in a plain [`PgStore`] and reject the second effect with a unique row, as
/// the repository's `examples/sqlx.rs` does, or with the fencing token. Write shared code over
/// `&impl GenericClient`; a [`Connection`] dereferences to such a client. Effects elsewhere,
/// including calls over the network, are as without an inbox. Messages for Kafka can be [committed
/// in the transaction](Transaction::publish) and are published after it.
///
/// A batch layer inside the inbox has a transaction for **each** of its requests. Two requests of
/// one batch that write the same row wait for each other, and Postgres does not detect that
/// deadlock.
///
/// A commit, including deferred constraints and triggers, may take as long as a lock lives without
/// a renewal, because renewals wait for it. Without a lock it is limited by the store's [command
/// timeout](crate::PgConfig::with_command_timeout).
#[derive(Clone)]
#[must_use]
pub struct Inbox {
    settings: Arc<Settings>,
    keeper: LockKeeper,
    log_limit: Arc<Mutex<LogLimit>>,
    /// Notified of each commit that has written a message to the outbox.
    outbox_written: Arc<Notify>,
}

#[derive(Clone)]
struct Settings {
    store: PgStore,
    pool: Pool,
    max_wait: Duration,
    max_reruns: u32,
}

impl Inbox {
    /// Creates an inbox in the database of this store, with its own lock keeper and its own
    /// [connections](crate::PgConfig::with_inbox_connections) for transactions.
    ///
    /// # Errors
    /// Fails if the keeper's thread cannot be started.
    pub fn new(store: &PgStore) -> Result<Self, ConfigError> {
        let keeper = LockKeeper::new(store.clone())?;
        let pool = store.0.config.transaction_pool();
        let pool = pool.map_err(|error| ConfigError::new(error.to_string()))?;
        let settings = Settings {
            store: store.clone(),
            pool,
            max_wait: Duration::from_secs(10),
            max_reruns: 10,
        };
        Ok(Self {
            settings: Arc::new(settings),
            keeper,
            log_limit: Arc::default(),
            outbox_written: Arc::default(),
        })
    }

    /// Sets how long a handler waits for a connection before its attempt is handed back. Default:
    /// 10 s.
    pub fn with_max_wait(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.settings).max_wait = wait;
        self
    }

    /// Sets how many times a handler may run again, under the same lock and as the same attempt,
    /// because its transaction conflicted with another or its connection broke. Default: 10, with a
    /// backoff of 10 ms doubling to 1 s with full jitter. Together that is some seconds, as long as
    /// a restart of the server takes.
    pub fn with_max_reruns(mut self, reruns: u32) -> Self {
        Arc::make_mut(&mut self.settings).max_reruns = reruns;
        self
    }

    /// The lock keeper of this inbox, for the layers to be used with it.
    pub fn keeper(&self) -> &LockKeeper {
        &self.keeper
    }

    /// Runs the handlers of this layer in transactions.
    ///
    /// # Errors
    /// Fails if the layer does not use [this inbox's keeper](Self::keeper).
    pub fn layer<E, C>(
        &self,
        layer: IdempotencyLayer<E, C>,
    ) -> Result<InboxLayer<E, C>, ConfigError> {
        if !layer.is_stored_by(&self.keeper) {
            return Err(ConfigError::new(
                "the layer's entries must be in the inbox's database: create it with `inbox.keeper()`",
            ));
        }
        // First, because a user's classifier must not repeat a handler whose effects are committed.
        let layer = layer.with_first_classifier(InboxClassifier).with_rollback();
        Ok(InboxLayer::new(self.clone(), layer))
    }

    /// Runs plain functions in transactions, each once for its key. `config` may be just the name
    /// of a namespace. For other policies, create an [`InboxRunner`] from a [`layer`](Self::layer).
    ///
    /// # Errors
    /// The errors of [`IdempotencyLayer::new`].
    pub fn runner(&self, config: impl Into<IdempotencyConfig>) -> Result<InboxRunner, ConfigError> {
        Ok(self.layer(IdempotencyLayer::new(&self.keeper, config, ())?)?.into())
    }

    /// Logs why handlers have to wait, at most once a minute.
    fn log_wait(&self, error: &StoreError) {
        let mut log_limit = self.log_limit.lock().unwrap_or_else(PoisonError::into_inner);
        if log_limit.allow(Instant::now()) {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "handlers are waiting for connections; increase `PgConfig::with_inbox_connections`, and check \
                 that the server and the role allow these connections besides the store's"
            );
        }
    }

    /// Notifies the relay of a commit, if the transaction has written messages.
    fn notify_relay(&self, message_counter: &MessageCounter) {
        if message_counter.has_messages() {
            self.outbox_written.notify_one();
        }
    }

    pub(crate) fn outbox_written(&self) -> &Arc<Notify> {
        &self.outbox_written
    }

    pub(crate) fn config(&self) -> &PgConfig {
        &self.settings.store.0.config
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("store", &self.settings.store).finish_non_exhaustive()
    }
}
