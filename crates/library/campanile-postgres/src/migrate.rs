//! Migration of the schema from any earlier version to the version of this crate.

use campanile_core::BoxError;
use campanile_sql::MIGRATIONS;
use deadpool_postgres::GenericClient;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, IsolationLevel};

use crate::connect::wait_for_connection;
use crate::failure::{WithAdvice, with_advice};
use crate::{ConnectError, PgConfig};

/// Migrates the database's schema to the version that this library requires, in one transaction.
/// Does nothing if the schema already has that version. Concurrent migrations wait for each other
/// without a limit: wrap the call in a timeout if one of them may hang.
///
/// The user in the URL becomes the owner of whatever the migration creates, and must be allowed to
/// create a schema (`GRANT CREATE ON DATABASE`). The user of the store needs far fewer permissions;
/// [`PgConfig`] lists them.
///
/// A migration that waits for a table for more than two seconds fails, because all calls of
/// connected processes wait behind it. A dump, for example, uses the tables for long.
///
/// # Errors
/// The errors of [`PgStore::connect`](crate::PgStore::connect); [`ConnectError::Migration`] if a
/// step fails, and [`ConnectError::Schema`] if the schema's version is later than this library's.
///
/// # Cancellation
/// If the future is dropped, either the whole migration has been applied or nothing of it.
pub async fn migrate(config: impl Into<PgConfig>) -> Result<(), ConnectError> {
    migrate_with(config, MIGRATIONS).await
}

/// Migrates as [`migrate`] does, but with these migrations, so that a test can add a later version.
#[doc(hidden)]
pub async fn migrate_with(
    config: impl Into<PgConfig>,
    migrations: &[(i32, &str)],
) -> Result<(), ConnectError> {
    // Identifies this project's migration among all advisory locks.
    const LOCK: i64 = 0x6361_6d70_616e_6900;
    let config = config.into();
    config.check().map_err(ConnectError::Config)?;
    let pool = config.check_pool()?;
    let mut client = wait_for_connection(&pool, config.connect_timeout).await?;
    let address = pool.address();
    let from_server = |error| ConnectError::from_server(error, address);

    let beginning = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let transaction = beginning.start().await.map_err(from_server)?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(from_server)?;
    let found = installed_version(&transaction, address).await?;
    if found > migrations.last().map(|(version, _)| *version) {
        return Err(ConnectError::Schema { address: address.into(), found });
    }
    transaction.batch_execute("SET LOCAL lock_timeout = '2s'").await.map_err(from_server)?;
    for &(version, text) in migrations.iter().filter(|(version, _)| found < Some(*version)) {
        let failed = |error| ConnectError::Migration {
            address: address.into(),
            version,
            source: with_migration_advice(error, found),
        };
        transaction.batch_execute(text).await.map_err(failed)?;
        tracing::info!(address, version, "migrated the Campanile schema");
    }
    transaction.commit().await.map_err(from_server)
}

/// Reads the version of the installed schema; `None` if there is no schema. Changes nothing.
///
/// The user must be allowed to use the schema, if there is one (`GRANT USAGE ON SCHEMA campanile`).
///
/// # Errors
/// The errors of [`PgStore::connect`](crate::PgStore::connect), except
/// [`ConnectError::Schema`].
pub async fn schema_version(config: impl Into<PgConfig>) -> Result<Option<i32>, ConnectError> {
    let config = config.into();
    config.check().map_err(ConnectError::Config)?;
    let pool = config.check_pool()?;
    let client = wait_for_connection(&pool, config.connect_timeout).await?;
    installed_version(&client, pool.address()).await
}

/// Adds advice to an error that has another reason in a migration than in the store: a migration
/// needs other permissions, and locks whole tables.
fn with_migration_advice(error: Error, found: Option<i32>) -> BoxError {
    let advice = match (error.code(), found) {
        (Some(&SqlState::INSUFFICIENT_PRIVILEGE), None) => {
            "the user may not create a schema; run `GRANT CREATE ON DATABASE` for it"
        }
        (Some(&SqlState::INSUFFICIENT_PRIVILEGE), Some(_)) => {
            "the schema belongs to another user; migrate as its owner"
        }
        (Some(&SqlState::LOCK_NOT_AVAILABLE), _) => {
            "another transaction has been using a table for too long, such as a dump; migrate \
             again once it has ended"
        }
        _ => return with_advice(error),
    };
    WithAdvice { advice, error }.into()
}

/// Reads the version of the installed schema; `None` if there is no schema.
async fn installed_version<C: GenericClient>(
    client: &C,
    address: &str,
) -> Result<Option<i32>, ConnectError> {
    const SCHEMA_EXISTS: &str = "SELECT to_regprocedure('campanile.version()') IS NOT NULL";
    let from_server = |error| ConnectError::from_server(error, address);
    let row = client.query_one(SCHEMA_EXISTS, &[]).await.map_err(from_server)?;
    if !row.try_get::<_, bool>(0).map_err(from_server)? {
        return Ok(None);
    }
    let row = client.query_one("SELECT campanile.version()", &[]).await.map_err(from_server)?;
    row.try_get(0).map_err(from_server)
}
