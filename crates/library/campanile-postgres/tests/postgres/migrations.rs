//! The migration of the schema, and the errors for a missing or different schema.

use std::time::Duration;

use campanile_postgres::{ConnectError, PgStore, migrate, migrate_with, schema_version};
use campanile_sql::{MIGRATIONS, VERSION};
use tokio::time::Instant;

use crate::differential::v0_1;
use crate::support::{Database, acquire_grant, chain, key, with_next_version};

#[tokio::test]
async fn current_schema_is_left_unchanged() {
    let database = Database::new().await;
    let applied = || database.psql("SELECT version, applied FROM campanile.migration");
    let before = applied();
    migrate(database.config()).await.unwrap();
    assert_eq!(applied(), before);
}

#[tokio::test]
async fn longest_timeouts_do_not_overflow() {
    let database = Database::empty();
    let config = database.config().with_connect_timeout(Duration::MAX);
    let config = config.with_command_timeout(Duration::MAX);
    migrate(config.clone()).await.unwrap();
    let store = PgStore::connect(config).await.unwrap();
    acquire_grant(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn concurrent_migrations_wait_for_each_other() {
    let database = Database::empty();
    let [a, b, c] = [(), (), ()].map(|()| migrate(database.config()));
    let (a, b, c) = tokio::join!(a, b, c);
    a.and(b).and(c).unwrap();
    let count = database.psql("SELECT count(*) FROM campanile.migration");
    assert_eq!(count, MIGRATIONS.len().to_string());
}

#[tokio::test]
async fn sql_files_alone_create_the_same_schema() {
    let database = Database::empty();
    for (_, text) in MIGRATIONS {
        database.psql(text);
    }
    database.store().await;
}

/// Once 0.1 is published, only later versions change the schema.
#[test]
fn schema_of_0_1_is_unchanged() {
    assert!(MIGRATIONS[0] == (1, v0_1::SCHEMA_SQL), "0001_schema.sql differs from that of 0.1");
}

#[tokio::test]
async fn only_later_versions_are_migrated_to() {
    let database = Database::new().await;
    let applied = || database.psql("SELECT version, applied FROM campanile.migration");
    let before = applied();
    let migrations = with_next_version("CREATE TABLE campanile.added_later ()");
    migrate_with(database.config(), &migrations).await.unwrap();
    let after = applied();
    assert!(after.starts_with(&before), "{before} {after}");
    assert_eq!(schema_version(database.config()).await.unwrap(), Some(VERSION + 1));
    migrate_with(database.config(), &migrations).await.unwrap();
    assert_eq!(applied(), after);
}

#[tokio::test]
async fn schema_version_is_read_without_a_migration() {
    let database = Database::empty();
    let version = || schema_version(database.config());
    assert_eq!(version().await.unwrap(), None);
    assert_eq!(version().await.unwrap(), None, "the schema was installed");
    migrate(database.config()).await.unwrap();
    assert_eq!(version().await.unwrap(), Some(VERSION));
}

#[tokio::test]
async fn missing_schema_error_says_what_to_run() {
    let database = Database::empty();
    let error = PgStore::connect(database.config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Schema { found: None, .. }), "{error:?}");
    assert!(error.to_string().contains("run `campanile_postgres::migrate`"), "{error}");
}

#[tokio::test]
async fn other_schema_version_is_rejected_and_a_later_not_migrated() {
    let database = Database::new().await;
    database.psql(&format!("INSERT INTO campanile.migration (version) VALUES ({})", VERSION + 1));
    for error in [
        PgStore::connect(database.config()).await.unwrap_err(),
        migrate(database.config()).await.unwrap_err(),
    ] {
        let found = Some(VERSION + 1);
        assert!(
            matches!(&error, ConnectError::Schema { found: it, .. } if *it == found),
            "{error}"
        );
        assert!(error.to_string().contains("use a release for version"), "{error}");
    }
    database.psql("DELETE FROM campanile.migration; INSERT INTO campanile.migration VALUES (0)");
    let error = PgStore::connect(database.config()).await.unwrap_err();
    assert!(error.to_string().contains("run `campanile_postgres::migrate`"), "{error}");
}

#[tokio::test]
async fn migration_behind_a_long_transaction_fails_soon() {
    let database = Database::new().await;
    let migrations =
        with_next_version("ALTER TABLE campanile.entry ADD COLUMN added_later integer");
    let dump = database.client().await;
    dump.batch_execute("BEGIN; SELECT FROM campanile.entry").await.unwrap();
    let start = Instant::now();
    let error = migrate_with(database.config(), &migrations).await.unwrap_err();
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    assert!(
        matches!(error, ConnectError::Migration { version, .. } if version == VERSION + 1),
        "{error:?}"
    );
    assert!(chain(&error).contains("such as a dump"), "{}", chain(&error));
    database.store().await;
    dump.batch_execute("COMMIT").await.unwrap();
    migrate_with(database.config(), &migrations).await.unwrap();
}
