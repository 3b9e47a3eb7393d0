//! The store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Store, StoreError};
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::connect::look;
use crate::pool::Pool;
use crate::sweep::{self, Sweeper};
use crate::{ConnectError, PgConfig};

/// No call takes longer, so that its deadline can be counted.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Keeps entries in a table of Postgres, version 14 or later, with the schema that
/// [`migrate`](crate::migrate()) makes. Clones share their connections.
///
/// A batch is a call for each kind of command in it, sent together over one connection; each call is a
/// transaction of its own. Batches never wait for each other in a circle, whatever the order of their keys.
///
/// # Connections
/// [`connect`](Self::connect) looks at the server and closes its connection again. Those that the store
/// works with are made on the runtime that first needs them. The lock keeper renews over two others, on
/// a runtime of its own, so that a blocked runtime of the program delays no renewal. One is replaced when it breaks, when
/// its server has become a replica, and when an answer did not come in time; those that are idle then, too.
///
/// A call waits for one half of its time, and what is being made goes on without it, for the next call. Of
/// several hosts, one that says nothing holds up no other.
///
/// # Errors
/// A command that was not answered within the command timeout fails as [`Timeout`], all that the
/// server or the network refuses as [`Unavailable`]; so does one for which no connection was free in
/// time, and then nothing was sent. A connection that broke shows in no error as long as a server is
/// there that takes writes: what it did not answer is sent once more.
///
/// [`Timeout`]: campanile_idempotency::StoreErrorKind::Timeout
/// [`Unavailable`]: campanile_idempotency::StoreErrorKind::Unavailable
///
/// # Entries that are over
/// They are as good as none, and are deleted in the background, some pages of the table at a time: by
/// one process after the other, however many there are. A lock on a row is never waited for.
///
/// # Cancellation
/// A dropped call may have been applied or not, as if it had failed; no other call gets its answer.
#[derive(Clone)]
pub struct PgStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) config: PgConfig,
    command_timeout: Duration,
    sweeper: Option<Sweeper>,
}

impl PgStore {
    /// A store on this server; a URL is enough.
    ///
    /// A server that is not up yet is waited for: nothing listens there, its name is not known, it
    /// recovers, or takes no writes yet. An event tells so.
    ///
    /// # Errors
    /// When the server is not there within the
    /// [connect timeout](PgConfig::with_connect_timeout); at once when it refuses the credentials, has
    /// no schema of Campanile, or one of another version. The error tells the address that was tried.
    pub async fn connect(config: impl Into<PgConfig>) -> Result<Self, ConnectError> {
        let config = config.into();
        let pool = config.pool()?;
        let command_timeout = config.command_timeout.min(LONGEST);
        look(&config.few()?, config.connect_timeout.min(LONGEST), command_timeout).await?;
        let sweeper = config.sweep_interval.map(Sweeper::new);
        Ok(Self(Arc::new(Inner { pool, config, command_timeout, sweeper })))
    }

    /// Goes through the table once and deletes what is over; says how many entries that were. For who
    /// connects [without sweeping](PgConfig::without_sweeping); else the store does it by itself.
    ///
    /// # Errors
    /// As [`apply`](Store::apply). What was deleted until then stays deleted.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        sweep::all(&self.0).await
    }
}

impl Inner {
    /// Within the time that a call has.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.command_timeout;
        timeout_at(deadline, call).await.unwrap_or_else(|_| Err(self.late()))
    }

    fn late(&self) -> StoreError {
        let (address, limit) = (self.pool.address(), self.command_timeout);
        StoreError::timeout(format!("Postgres at {address} did not answer within {limit:?}"))
    }
}

impl Store for PgStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.apply_batch(vec![command]).await.pop().expect("one command has one answer")
    }

    async fn apply_batch(&self, commands: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let Inner { pool, command_timeout, sweeper, .. } = &*self.0;
        if let Some(sweeper) = sweeper {
            sweeper.begin(&self.0);
        }
        let mut batch = Batch::new(pool, &commands, Instant::now() + *command_timeout);
        batch.run().await;
        batch.answers(&self.0.late())
    }

    /// A store in the same database, with two connections of its own. This one deletes what is over.
    fn separate(&self) -> Self {
        let Inner { config, command_timeout, .. } = &*self.0;
        let pool = config.separate().expect("the same settings made a pool before");
        let (config, command_timeout) = (config.clone(), *command_timeout);
        Self(Arc::new(Inner { pool, config, command_timeout, sweeper: None }))
    }

    /// The command timeout.
    fn longest_call(&self) -> Option<Duration> {
        Some(self.0.command_timeout)
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("address", &self.0.pool.address()).finish_non_exhaustive()
    }
}
