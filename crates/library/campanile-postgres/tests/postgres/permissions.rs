//! The documented permissions suffice for everything that is promised, and grant no more.

use std::time::Duration;

use campanile_core::{ExpireOutcome, FencingToken, Reply};
use campanile_idempotency::{
    ExpireStore, Found, InspectStore, ScanCursor, ScanFilter, StoreErrorKind,
};
use campanile_postgres::{ConnectError, PgStore, migrate, migrate_with};
use campanile_test::contract::{self, RealTime};

use crate::support::{
    Database, acquire, acquire_grant, apply, chain, complete, grant, key, long_timeouts,
    with_next_version,
};

/// Finds the statements that the documentation lists for this user.
fn documented_grants(text: &str, user: &str) -> String {
    let grants = text.lines().filter_map(|line| {
        line.trim().trim_start_matches(['/', '-']).trim().strip_prefix("GRANT ")
    });
    let grants = grants.filter(|grant| grant.ends_with(&format!(" TO {user};")));
    grants.map(|grant| format!("GRANT {grant}\n")).collect()
}

const STORE_DOCS: &str = include_str!("../../src/config.rs");
const SCHEMA_DOCS: &str = campanile_sql::MIGRATIONS[0].1;

/// Creates a user of this name and returns its URL. Users belong to the whole server, so each test
/// needs its own.
fn user(database: &Database, name: &str, grants: &str) -> String {
    let grants = grants.replace(" TO app;", &format!(" TO {name};"));
    let grants = grants.replace(" TO operator;", &format!(" TO {name};"));
    database.psql(&format!("CREATE ROLE {name} LOGIN; {grants}"));
    database.url().replace("//postgres@", &format!("//{name}@"))
}

#[tokio::test]
async fn documented_permissions_suffice_for_the_contract() {
    let database = Database::new().await;
    let grants = documented_grants(STORE_DOCS, "app");
    assert_eq!(grants, documented_grants(SCHEMA_DOCS, "app"), "the two documents differ");
    let url = user(&database, "app_of_the_contract", &grants);
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    contract::run(&store, &RealTime).await;
    store.sweep().await.unwrap();
    for sql in [
        "SELECT * FROM campanile.entry",
        "UPDATE campanile.entry SET permanent_failure = true",
        "DELETE FROM campanile.entry",
        "TRUNCATE campanile.entry",
        "INSERT INTO campanile.migration (version) VALUES (99)",
    ] {
        let client = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(client.1);
        let error = client.0.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{sql}: {error}");
    }
}

#[tokio::test]
async fn operator_can_read_and_change_nothing() {
    let database = Database::new().await;
    let key = key("key");
    acquire_grant(&database.store().await, &key, 1).await;
    let grants = documented_grants(STORE_DOCS, "operator");
    assert_eq!(grants, documented_grants(SCHEMA_DOCS, "operator"), "the two documents differ");
    let url = user(&database, "operator_who_looks", &grants);
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let shown = "SELECT encode(key, 'hex') FROM campanile.entry WHERE state = 'P'";
    let row = client.query_one(shown, &[]).await.unwrap();
    // The same form as in the logs.
    assert!(format!("{key:?}").contains(row.get::<_, &str>(0)));
    for sql in ["DELETE FROM campanile.entry", "SELECT campanile.sweep(0, 1)"] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{sql}: {error}");
    }
    let described = "SELECT campanile.describe(details) FROM campanile.entry";
    client.query_one(described, &[]).await.unwrap();

    let store = PgStore::connect_to_inspect(long_timeouts(&url)).await.unwrap();
    let found = store.inspect(&key).await.unwrap().found;
    assert!(matches!(found, Found::Entry { .. }), "{found:?}");
    let filter = ScanFilter::new(key.namespace().clone());
    let page = store.scan(&filter, &ScanCursor::default()).await.unwrap();
    assert_eq!(page.entries, [(key.clone(), found)]);
    let error = apply(&store, &key, acquire(2)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let error = PgStore::connect(long_timeouts(&url)).await.unwrap_err();
    assert!(chain(&error).contains("may not call acquire, renew"), "{}", chain(&error));
}

#[tokio::test]
async fn documented_purger_permissions_suffice_and_operator_lacks_them() {
    let database = Database::new().await;
    let key = key("key");
    let grant = grant(FencingToken::new(1).unwrap(), 1);
    apply(&database.store().await, &key, complete(grant, b"done")).await.unwrap();
    let grants = documented_grants(STORE_DOCS, "operator");
    let url = user(&database, "operator_who_purges", &grants);
    let store = PgStore::connect_to_inspect(long_timeouts(&url)).await.unwrap();
    let Found::Entry { entry, .. } = store.inspect(&key).await.unwrap().found else {
        panic!("no entry");
    };
    let entry = [(key.clone(), entry)];
    for after in [Duration::ZERO, Duration::from_secs(3600)] {
        let error = store.expire(&entry, after).await.unwrap_err();
        assert!(chain(&error).contains("GRANT DELETE, UPDATE"), "{}", chain(&error));
    }

    let grants = documented_grants(STORE_DOCS, "purger");
    database.psql(&grants.replace(" TO purger;", " TO operator_who_purges;"));
    for after in [Duration::from_secs(3600), Duration::ZERO] {
        assert_eq!(store.expire(&entry, after).await.unwrap(), [ExpireOutcome::Done]);
    }
    assert_eq!(store.inspect(&key).await.unwrap().found, Found::Absent);
}

#[tokio::test]
async fn application_cannot_inspect_entries() {
    let database = Database::new().await;
    let url = user(&database, "app_that_inspects", &documented_grants(STORE_DOCS, "app"));
    let error = PgStore::connect_to_inspect(long_timeouts(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
    assert!(chain(&error).contains("GRANT SELECT ON campanile.entry"), "{}", chain(&error));
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    let error = store.inspect(&key("key")).await.unwrap_err();
    assert!(chain(&error).contains("GRANT SELECT ON campanile.entry"), "{}", chain(&error));
    let filter = ScanFilter::new(key("key").namespace().clone());
    let error = store.scan(&filter, &ScanCursor::default()).await.unwrap_err();
    assert!(chain(&error).contains("GRANT SELECT ON campanile.entry"), "{}", chain(&error));
}

#[tokio::test]
async fn missing_permissions_error_names_the_grants() {
    let database = Database::new().await;
    let url = user(&database, "app_without", "");
    let error = PgStore::connect(long_timeouts(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
    assert!(chain(&error).contains("GRANT USAGE ON SCHEMA campanile"), "{}", chain(&error));

    let error = migrate(long_timeouts(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn function_without_grant_after_migration_fails_connect() {
    let database = Database::new().await;
    let url = user(&database, "app_without_a_grant", &documented_grants(STORE_DOCS, "app"));
    // A function of another version, with fewer parameters, may be called.
    database.psql(
        "REVOKE EXECUTE ON FUNCTION campanile.conclude FROM app_without_a_grant; \
         CREATE FUNCTION campanile.conclude(text) RETURNS void LANGUAGE sql AS ''",
    );
    let error = PgStore::connect(long_timeouts(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("may not call conclude; run `GRANT EXECUTE ON ALL FUNCTIONS"), "{text}");

    database.psql("DROP FUNCTION campanile.sweep");
    let error = PgStore::connect(database.config()).await.unwrap_err();
    assert!(chain(&error).contains("sweep"), "{error:?}");
}

#[tokio::test]
async fn revoked_permissions_fail_the_next_command_with_advice() {
    let database = Database::new().await;
    let url = user(&database, "app_for_a_while", &documented_grants(STORE_DOCS, "app"));
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    let reply = apply(&store, &key("a"), acquire(1)).await.unwrap();
    assert!(matches!(reply, Reply::Acquired { .. }), "{reply:?}");
    database.psql(
        "REVOKE USAGE ON SCHEMA campanile FROM app_for_a_while; \
        REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile FROM app_for_a_while",
    );
    let error = apply(&store, &key("b"), acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("GRANT EXECUTE"), "{}", chain(&error));
}

#[tokio::test]
async fn forbidden_migration_error_names_the_permission() {
    let database = Database::empty();
    let url = user(&database, "app_that_may_not_migrate", "");
    let error = migrate(long_timeouts(&url)).await.unwrap_err();
    assert!(chain(&error).contains("GRANT CREATE ON DATABASE"), "{}", chain(&error));

    // The schema exists and belongs to another user.
    migrate(database.config()).await.unwrap();
    database.psql(
        "GRANT USAGE ON SCHEMA campanile TO app_that_may_not_migrate; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app_that_may_not_migrate",
    );
    let migrations =
        with_next_version("ALTER TABLE campanile.entry ADD COLUMN added_later integer");
    let error = migrate_with(long_timeouts(&url), &migrations).await.unwrap_err();
    assert!(chain(&error).contains("migrate as its owner"), "{}", chain(&error));
}

#[tokio::test]
async fn user_with_create_permission_can_migrate() {
    let database = Database::empty();
    let grant = format!("GRANT CREATE ON DATABASE {} TO app;", database.name());
    let url = user(&database, "app_that_migrates", &grant);
    migrate(long_timeouts(&url)).await.unwrap();
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    acquire_grant(&store, &key("key"), 1).await;
}
