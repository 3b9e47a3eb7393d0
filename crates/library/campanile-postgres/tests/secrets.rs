//! Credentials are never shown. A separate binary, because it captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../../campanile-redis/tests/redis/captured_log.rs"]
mod captured_log;

use std::time::Duration;

use campanile_core::{Command, IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};
use campanile_idempotency::Store;
use campanile_postgres::{PgConfig, PgStore, migrate};
use campanile_test::PgServer;

use crate::captured_log::CapturedLog;

const PASSWORD: &str = "h3loise";
const SECRETS: [&str; 2] = [PASSWORD, "f0rgotten"];

/// Connects, if possible, and uses the store.
async fn connect_and_use(log: &CapturedLog, url: &str) -> Option<PgStore> {
    let config = PgConfig::new(url).with_connect_timeout(Duration::from_secs(5));
    log.show(&config);
    if let Err(error) = migrate(config.clone()).await {
        log.error(&error);
    }
    match PgStore::connect(config).await {
        Ok(store) => {
            run_command(log, &store).await;
            Some(store)
        }
        Err(error) => {
            log.error(&error);
            None
        }
    }
}

async fn run_command(log: &CapturedLog, store: &PgStore) {
    log.show(store);
    let namespace = Namespace::try_from("tests").unwrap();
    let command = Command {
        key: StoreKey::new(namespace, &IdempotencyKey::new("key").unwrap()),
        operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
        retention: Retention::default(),
    };
    if let Err(error) = store.apply(command).await {
        log.error(&error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn password_shows_in_no_event_error_or_debug_output() {
    let log = CapturedLog::default();
    log.listen();
    let mut server = PgServer::builder().password(PASSWORD).start().unwrap();
    let url = server.url();
    let store = connect_and_use(&log, &url).await.expect("connected");
    assert!(connect_and_use(&log, &url.replace(PASSWORD, "f0rgotten")).await.is_none());
    assert!(
        connect_and_use(
            &log,
            &url.replace("postgres@", "nobody@").replace("//postgres:", "//nobody:")
        )
        .await
        .is_none()
    );
    assert!(connect_and_use(&log, &format!("{url}?sslmode=require")).await.is_none());
    assert!(connect_and_use(&log, &format!("{url}?sslmode=perhaps")).await.is_none());
    assert!(connect_and_use(&log, &url.replace("postgres://", "mysql://")).await.is_none());
    assert!(connect_and_use(&log, &format!("host=127.0.0.1 pasword={PASSWORD}")).await.is_none());
    assert!(connect_and_use(&log, &url.replace("/postgres", "/nowhere")).await.is_none());
    server.psql("ALTER ROLE postgres PASSWORD 'f0rgotten'").unwrap();
    server
        .psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        )
        .unwrap();
    run_command(&log, &store).await;
    server.kill().unwrap();
    run_command(&log, &store).await;
    assert!(connect_and_use(&log, &url).await.is_none());

    let text = log.text();
    for event in ["waiting for Postgres", "password authentication failed", "denies access"] {
        assert!(text.contains(event), "not logged: {event}");
    }
    for secret in SECRETS {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} in {lines:#?}");
    }
}
