//! Credentials are never shown. A separate binary, because it captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../../campanile-redis/tests/redis/told.rs"]
mod told;

use std::time::Duration;

use campanile_core::{Command, IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};
use campanile_idempotency::Store;
use campanile_postgres::{PgConfig, PgStore, migrate};
use campanile_test::PgServer;

use crate::told::Told;

const PASSWORD: &str = "h3loise";
const SECRETS: [&str; 2] = [PASSWORD, "f0rgotten"];

/// Connects, if possible, and uses the store.
async fn used(told: &Told, url: &str) -> Option<PgStore> {
    let config = PgConfig::new(url).with_connect_timeout(Duration::from_secs(2)).unwrap();
    told.show(&config);
    if let Err(error) = migrate(config.clone()).await {
        told.error(&error);
    }
    match PgStore::connect(config).await {
        Ok(store) => {
            command(told, &store).await;
            Some(store)
        }
        Err(error) => {
            told.error(&error);
            None
        }
    }
}

async fn command(told: &Told, store: &PgStore) {
    told.show(store);
    let namespace = Namespace::try_from("tests").unwrap();
    let command = Command {
        key: StoreKey::new(namespace, IdempotencyKey::new("key").unwrap()),
        operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
        retention: Retention::default(),
    };
    if let Err(error) = store.apply(command).await {
        told.error(&error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_shows_in_no_event_no_error_and_no_debug_output() {
    let told = Told::default();
    told.listen();
    let mut server = PgServer::builder().password(PASSWORD).start().unwrap();
    let url = server.url();
    let store = used(&told, &url).await.expect("connected");
    assert!(used(&told, &url.replace(PASSWORD, "f0rgotten")).await.is_none());
    assert!(
        used(&told, &url.replace("postgres@", "nobody@").replace("//postgres:", "//nobody:"))
            .await
            .is_none()
    );
    assert!(used(&told, &format!("{url}?sslmode=require")).await.is_none());
    assert!(used(&told, &format!("{url}?sslmode=perhaps")).await.is_none());
    assert!(used(&told, &url.replace("postgres://", "mysql://")).await.is_none());
    assert!(used(&told, &format!("host=127.0.0.1 pasword={PASSWORD}")).await.is_none());
    assert!(used(&told, &url.replace("/postgres", "/nowhere")).await.is_none());
    server.psql("ALTER ROLE postgres PASSWORD 'f0rgotten'").unwrap();
    server
        .psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        )
        .unwrap();
    command(&told, &store).await;
    server.kill().unwrap();
    command(&told, &store).await;
    assert!(used(&told, &url).await.is_none());

    let text = told.text();
    for told in ["waiting for Postgres", "password authentication failed", "denies access"] {
        assert!(text.contains(told), "not logged: {told}");
    }
    for secret in SECRETS {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} in {lines:#?}");
    }
}
