//! The schema, from whichever version to this one's.

use campanile_core::BoxError;
use campanile_sql::{MIGRATIONS, VERSION};
use deadpool_postgres::GenericClient;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::connect::connection;
use crate::failure::{Explained, explained};
use crate::{ConnectError, PgConfig};

/// Brings the schema of the database to the version that this library is for, in one transaction; does
/// nothing if it is. Processes that do so at the same time wait for each other, without a bound: put a
/// time-out around it if one may hang.
///
/// The user of the URL becomes the owner of what is new, and must be able to make a schema
/// (`GRANT CREATE ON DATABASE`). Who works with the store later needs much less:
/// [`PgConfig`] tells what.
///
/// # Errors
/// As [`PgStore::connect`](crate::PgStore::connect); [`ConnectError::Migration`] when a step fails, and
/// [`ConnectError::Schema`] when the schema is of a later version.
///
/// # Cancellation
/// A future that is dropped leaves all of it done or none.
pub async fn migrate(config: impl Into<PgConfig>) -> Result<(), ConnectError> {
    // Of this project, and of nobody else.
    const LOCK: i64 = 0x6361_6d70_616e_6900;
    let config = config.into();
    let pool = config.few()?;
    let mut client = connection(&pool, config.connect_timeout).await?;
    let address = pool.address();
    let said = |error| ConnectError::said(error, address);

    let transaction = client.transaction().await.map_err(said)?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(said)?;
    let found = version(&transaction, address).await?;
    if found > Some(VERSION) {
        return Err(ConnectError::Schema { address: address.into(), found });
    }
    for &(version, text) in MIGRATIONS.iter().filter(|(version, _)| found < Some(*version)) {
        let failed = |error| ConnectError::Migration {
            address: address.into(),
            version,
            source: advised(error, found),
        };
        transaction.batch_execute(text).await.map_err(failed)?;
        tracing::info!(address, version, "migrated the schema of Campanile");
    }
    transaction.commit().await.map_err(said)
}

/// Who migrates needs other rights than who works with the store.
fn advised(error: Error, found: Option<i32>) -> BoxError {
    let advice = match found {
        _ if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) => return explained(error),
        None => "the user may not make a schema; `GRANT CREATE ON DATABASE` to it",
        Some(_) => "the schema is another user's; migrate as its owner",
    };
    Explained { advice, error }.into()
}

/// The version of the schema that is there.
async fn version<C: GenericClient>(client: &C, address: &str) -> Result<Option<i32>, ConnectError> {
    const IS_THERE: &str = "SELECT to_regprocedure('campanile.version()') IS NOT NULL";
    let said = |error| ConnectError::said(error, address);
    let row = client.query_one(IS_THERE, &[]).await.map_err(said)?;
    if !row.try_get::<_, bool>(0).map_err(said)? {
        return Ok(None);
    }
    let row = client.query_one("SELECT campanile.version()", &[]).await.map_err(said)?;
    row.try_get(0).map_err(said)
}
