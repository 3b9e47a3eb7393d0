//! Helpers of all tests of the store.

use std::error::Error;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use campanile_core::{
    Answer, Command, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner, Reply,
    Retention, StoreKey,
};
use campanile_idempotency::{Store, StoreError, StoreErrorKind};
use campanile_postgres::{PgConfig, PgStore, migrate};
use campanile_sql::{MIGRATIONS, VERSION};
use campanile_test::PgServer;
use tokio::time::{sleep, timeout};

/// How long a test waits for an expected event, however busy the machine is.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A test's own database, with the schema, on a server that concurrent tests share.
pub(crate) struct Database {
    server: Arc<PgServer>,
    url: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let database = Self::empty();
        migrate(database.config()).await.unwrap();
        database
    }

    /// Creates a database without the schema.
    pub(crate) fn empty() -> Self {
        static SHARED: Mutex<Weak<PgServer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        let server = shared.upgrade().unwrap_or_else(|| {
            let settings = PgServer::builder().config("max_connections", "300");
            Arc::new(settings.start().unwrap())
        });
        *shared = Arc::downgrade(&server);
        drop(shared);
        let url = server.new_database().unwrap();
        Self { server, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn config(&self) -> PgConfig {
        long_timeouts(self.url())
    }

    pub(crate) async fn store(&self) -> PgStore {
        PgStore::connect(self.config()).await.unwrap()
    }

    /// Runs SQL as the superuser, bypassing the store.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql_in(self.name(), sql).unwrap()
    }

    /// Waits until this query yields true. Other tasks on this thread run meanwhile.
    pub(crate) async fn wait_for(&self, query: &str) {
        let polling = async {
            while self.psql(query) != "t" {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(EVENT_TIMEOUT, polling)
            .await
            .unwrap_or_else(|_| panic!("not within {EVENT_TIMEOUT:?}: {query}"));
    }

    /// Runs SQL in another database of the server.
    pub(crate) fn psql_on_server(&self, sql: &str) -> String {
        self.server.psql(sql).unwrap()
    }

    /// Opens the test's own connection, which bypasses the store.
    pub(crate) async fn client(&self) -> tokio_postgres::Client {
        let connected = tokio_postgres::connect(self.url(), tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client
    }

    pub(crate) fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }
}

/// Returns all migrations, and one more with this SQL.
pub(crate) fn with_next_version(sql: &str) -> Vec<(i32, &'static str)> {
    let next = VERSION + 1;
    let sql = format!("INSERT INTO campanile.migration (version) VALUES ({next}); {sql}");
    [MIGRATIONS, &[(next, sql.leak())]].concat()
}

/// Settings for tests in which nothing times out, however busy the machine is.
pub(crate) fn long_timeouts(url: &str) -> PgConfig {
    let config = PgConfig::new(url).with_connect_timeout(Duration::from_secs(60));
    config.with_command_timeout(Duration::from_secs(60))
}

/// Settings for tests in which something times out. Wrap calls that are not meant to time out in
/// [`apply_until_answered`].
pub(crate) fn short_timeouts(url: &str) -> PgConfig {
    PgConfig::new(url).with_command_timeout(Duration::from_millis(300))
}

pub(crate) fn key(name: impl Into<bytes::Bytes>) -> StoreKey {
    let namespace = Namespace::try_from("tests").unwrap();
    StoreKey::new(namespace, &IdempotencyKey::new(name).unwrap())
}

pub(crate) fn owner(bits: u64) -> Owner {
    Owner::new(bits).unwrap()
}

pub(crate) fn grant(token: FencingToken, bits: u64) -> Grant {
    Grant { token, owner: owner(bits) }
}

pub(crate) fn acquire(bits: u64) -> Operation {
    Operation::Acquire {
        owner: owner(bits),
        ttl: Duration::from_secs(30),
        max_attempts: 5,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    }
}

pub(crate) fn complete(grant: Grant, reply: &'static [u8]) -> Operation {
    let reply = Some(bytes::Bytes::from_static(reply));
    Operation::Complete { grant, attempt: 1, fingerprint: None, reply, details: None }
}

pub(crate) fn command(key: &StoreKey, operation: Operation) -> Command {
    Command { key: key.clone(), operation, retention: Retention::default() }
}

pub(crate) async fn apply(
    store: &PgStore,
    key: &StoreKey,
    operation: Operation,
) -> Result<Reply, StoreError> {
    store.apply(command(key, operation)).await.map(|answer| answer.reply)
}

/// Repeats the command until it is answered, as a lock keeper does.
pub(crate) async fn apply_until_answered(
    store: &PgStore,
    key: &StoreKey,
    operation: Operation,
) -> Reply {
    for _ in 0..100 {
        match apply(store, key, operation.clone()).await {
            Err(error) => assert_ne!(error.kind(), StoreErrorKind::Unreadable),
            Ok(reply) => return reply,
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("no answer to {operation:?}");
}

/// Acquires a key that is not locked.
pub(crate) async fn acquire_grant(store: &PgStore, key: &StoreKey, bits: u64) -> Grant {
    match apply(store, key, acquire(bits)).await.unwrap() {
        Reply::Acquired { token, .. } => grant(token, bits),
        other => panic!("not acquired: {other:?}"),
    }
}

pub(crate) fn replies(answers: Vec<Result<Answer, StoreError>>) -> Vec<Reply> {
    answers.into_iter().map(|answer| answer.unwrap().reply).collect()
}

/// Formats an error and all its sources in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Reads a number from the environment, for longer runs.
pub(crate) fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}
