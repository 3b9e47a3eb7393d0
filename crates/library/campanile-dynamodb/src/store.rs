//! The store.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Stepped, Store, StoreError};

use crate::DynamoDbConfig;
use crate::table::Table;

/// A [`Store`] in a table of DynamoDB.
///
/// A command is a consistent read and, if it changes the entry, a conditional write. Clones share their
/// connections.
#[derive(Clone)]
pub struct DynamoDbStore {
    entries: Stepped<Table>,
    config: DynamoDbConfig,
}

impl DynamoDbStore {
    /// Creates a store, and checks by one read that the table exists, that the credentials allow it, and
    /// that the clock of this process agrees with DynamoDB's.
    ///
    /// # Errors
    /// * [`Misconfigured`](campanile_idempotency::StoreErrorKind::Misconfigured) for a setting out of its
    ///   bounds.
    /// * `Timeout` if DynamoDB does not answer within 10 s or the time limit of a command, whichever is
    ///   longer, and `Unavailable` for every other failure. The sources say what to do.
    pub async fn connect(config: DynamoDbConfig) -> Result<Self, StoreError> {
        config.check().map_err(StoreError::misconfigured)?;
        // Its connections are not used later, because their limits are longer.
        let setup = config.clone().for_setup();
        within(setup.command_timeout, Table::new(setup).check()).await?;
        Ok(Self { entries: Stepped::new(Table::new(config.clone())), config })
    }
}

impl Store for DynamoDbStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        within(self.config.command_timeout, self.entries.apply(command)).await
    }

    /// Limits a batch to 16 commands. Each command uses a connection of its own, and a lock keeper has
    /// up to four batches in flight.
    fn max_batch(&self) -> NonZeroUsize {
        const LIMIT: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
        LIMIT
    }

    fn max_call_duration(&self) -> Option<Duration> {
        Some(self.config.command_timeout)
    }

    fn for_renewals(&self) -> Self {
        Self { entries: self.entries.for_renewals(), config: self.config.clone() }
    }
}

impl fmt::Debug for DynamoDbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbStore").field("config", &self.config).finish_non_exhaustive()
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let elapsed = || StoreError::timeout(format!("DynamoDB did not answer within {limit:?}"));
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(elapsed()))
}
