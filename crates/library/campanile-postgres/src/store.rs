//! The Postgres store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Store, StoreError};
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::call::Schema;
use crate::connect::{MAX_TIMEOUT, NO_PERMISSION, Permissions, TO_CALL, TO_READ, check_server};
use crate::pool::Pool;
use crate::sweep::{self, Sweeper};
use crate::watch::Watch;
use crate::{ConnectError, Finding, PgConfig};

/// Keeps entries in a table of Postgres, version 14 or later, with the schema that
/// [`migrate`](crate::migrate()) creates. Clones share their connections.
///
/// A batch is one call for each kind of command in it, sent together over one connection. Each call
/// is a transaction of its own. Batches never deadlock, whatever the order of their keys.
///
/// # Connections
/// [`connect`](Self::connect) checks the server and closes the connection that it used. The store
/// opens its own connections on the runtime that first needs them. The lock keeper renews over two
/// others, on a runtime of its own, so that a blocked runtime of the program delays no renewal. The
/// store replaces a connection if it breaks, if its server has become a replica, or if an answer
/// does not arrive in time; in each case the store also closes all idle connections.
///
/// A call waits for a connection for at most half of its time. A connection that is still being
/// opened then stays available to the next call. If the URL names several hosts, one that does not
/// respond does not delay the others.
///
/// # Errors
/// A command that is not answered within the command timeout fails with [`Timeout`]. Any other
/// error of the server or the network fails it with [`Unavailable`], as does the lack of a free
/// connection; in the latter case nothing was sent. A broken connection causes no error as long as
/// a server is available that accepts writes: the store sends the unanswered commands once more.
///
/// [`Timeout`]: campanile_idempotency::StoreErrorKind::Timeout
/// [`Unavailable`]: campanile_idempotency::StoreErrorKind::Unavailable
///
/// # Expired entries
/// An expired entry counts as absent. The store deletes expired entries in the background, some
/// pages of the table at a time. However many processes use the store, only one of them deletes at
/// any time. It never waits for a row lock.
///
/// # Cancellation
/// The command of a dropped call may or may not have been applied, as if the call had failed. No
/// other call receives its answer.
#[derive(Clone)]
pub struct PgStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) config: PgConfig,
    schema: Schema,
    pub(crate) command_timeout: Duration,
    sweeper: Option<Sweeper>,
}

impl PgStore {
    /// Connects to a server. `config` may be just a URL.
    ///
    /// Waits for a server that is not up yet: nothing listens at its address, its name cannot be
    /// resolved, it is in recovery, or it does not accept writes yet. A warning is logged while it
    /// waits.
    ///
    /// # Errors
    /// Fails if the server is not available within the [connect
    /// timeout](PgConfig::with_connect_timeout). Fails at once if the server rejects the
    /// credentials, has no Campanile schema, or has one of another version, or if a setting is out
    /// of its bounds. The error contains the
    /// address.
    pub async fn connect(config: impl Into<PgConfig>) -> Result<Self, ConnectError> {
        let store = Self::connect_as(config.into(), Schema::CURRENT, &TO_CALL).await?;
        let address = store.0.pool.address();
        for finding in store.findings() {
            tracing::warn!(address, "unsafe Postgres configuration: {finding}");
        }
        Ok(store)
    }

    /// Connects as [`connect`](Self::connect) does, but for tools that only
    /// [inspect](campanile_idempotency::InspectStore) entries: the user needs no permission on a
    /// function, but must be allowed to read the table. [`PgConfig`] lists the grants.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_to_inspect(config: impl Into<PgConfig>) -> Result<Self, ConnectError> {
        Self::connect_as(config.into(), Schema::CURRENT, &TO_READ).await
    }

    /// Connects as a process that requires another version of the schema, so that a test can run
    /// former processes beside present ones.
    #[doc(hidden)]
    pub async fn connect_with_schema(
        config: impl Into<PgConfig>,
        schema: Schema,
    ) -> Result<Self, ConnectError> {
        Self::connect_as(config.into(), schema, &NO_PERMISSION).await
    }

    async fn connect_as(
        mut config: PgConfig,
        schema: Schema,
        permissions: &Permissions,
    ) -> Result<Self, ConnectError> {
        config.check().map_err(ConnectError::Config)?;
        // It counts with the recorder of metrics that is installed by now.
        config.watch = Arc::new(Watch::new(config.certificates.clone()));
        let pool = config.store_pool()?;
        let command_timeout = config.command_timeout.min(MAX_TIMEOUT);
        check_server(
            &config.check_pool()?,
            config.connect_timeout,
            command_timeout,
            schema.version,
            permissions,
        )
        .await?;
        let sweeper = config.sweep_interval.map(Sweeper::new);
        Ok(Self(Arc::new(Inner { pool, config, schema, command_timeout, sweeper })))
    }

    /// Returns what the server could lose of what it acknowledges, which [`connect`](Self::connect) has
    /// logged. What is added later is logged and counted (`campanile.postgres.unsafe_settings`).
    pub fn findings(&self) -> &[Finding] {
        self.0.config.watch.findings()
    }

    /// Sweeps the whole table: deletes all expired entries and returns their number. Only needed
    /// for stores [without sweeping](PgConfig::without_sweeping); other stores sweep by themselves.
    ///
    /// # Errors
    /// The errors of [`apply`](Store::apply). Entries deleted before the error stay deleted.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        sweep::sweep_table(&self.0).await
    }
}

impl Inner {
    /// Limits a call to the command timeout.
    pub(crate) async fn with_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.command_timeout;
        timeout_at(deadline, call).await.unwrap_or_else(|_| Err(self.timeout_error()))
    }

    fn timeout_error(&self) -> StoreError {
        let (address, limit) = (self.pool.address(), self.command_timeout);
        StoreError::timeout(format!("Postgres at {address} did not answer within {limit:?}"))
    }
}

impl Store for PgStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.apply_batch(vec![command]).await.pop().expect("a batch has an answer for each command")
    }

    async fn apply_batch(&self, commands: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let Inner { pool, schema, command_timeout, sweeper, .. } = &*self.0;
        if let Some(sweeper) = sweeper {
            sweeper.ensure_running(&self.0);
        }
        let mut batch = Batch::new(pool, schema, &commands, Instant::now() + *command_timeout);
        batch.run().await;
        batch.into_answers(&self.0.timeout_error())
    }

    /// Creates a store for the same database with two connections of its own. The original store
    /// does the sweeping.
    fn for_renewals(&self) -> Self {
        let Inner { config, schema, command_timeout, .. } = &*self.0;
        let pool = config.renewal_pool().expect("`connect` made a pool of the same settings");
        let (config, schema, command_timeout) = (config.clone(), *schema, *command_timeout);
        Self(Arc::new(Inner { pool, config, schema, command_timeout, sweeper: None }))
    }

    /// The command timeout.
    fn max_call_duration(&self) -> Option<Duration> {
        Some(self.0.command_timeout)
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("address", &self.0.pool.address()).finish_non_exhaustive()
    }
}
