//! Helpers shared by the tests.

use std::time::Duration;

use campanile_core::{
    Answer, Command, Entry, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner,
    Reply, Retention, StoreKey,
};
use campanile_idempotency::{Found, InspectStore, Store, StoreError, StoreErrorKind};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisServer, eventually};

pub(crate) const NAMESPACE: &str = "tests";

/// Starts a server and connects a store to it.
pub(crate) async fn server_and_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    (server, store)
}

/// The short timeouts, with a margin for a busy machine. Well below any other timeout.
pub(crate) const MAX_CALL_TIME: Duration = Duration::from_secs(8);

/// A configuration for tests in which nothing times out, however busy the machine is.
pub(crate) fn long_timeout(url: impl Into<String>) -> RedisConfig {
    with_long_timeouts(RedisConfig::new(url))
}

/// The same, for sentinels and clusters.
pub(crate) fn with_long_timeouts(config: RedisConfig) -> RedisConfig {
    let timeout = Duration::from_secs(60);
    config.with_connect_timeout(timeout).with_command_timeout(timeout)
}

/// A configuration for tests in which a command times out. [`apply_with_retry`] retries commands that should
/// succeed.
pub(crate) fn short_timeout(url: impl Into<String>) -> RedisConfig {
    RedisConfig::new(url).with_command_timeout(Duration::from_millis(300))
}

pub(crate) fn key(name: impl Into<bytes::Bytes>) -> StoreKey {
    let namespace = Namespace::try_from(NAMESPACE).unwrap();
    StoreKey::new(namespace, &IdempotencyKey::new(name).unwrap())
}

/// The name of the entry in Redis. Computed independently of the store, because it must never
/// change.
pub(crate) fn redis_key(key: &StoreKey) -> Vec<u8> {
    let digest = key.digest();
    let mut name = format!("{{{}:{:02x}}}", key.namespace(), digest[15] % 16).into_bytes();
    name.extend_from_slice(digest);
    name
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

pub(crate) fn complete(grant: Grant, reply: &'static str) -> Operation {
    Operation::Complete {
        grant,
        attempt: 1,
        fingerprint: None,
        reply: Some(reply.into()),
        details: None,
    }
}

pub(crate) fn command(key: &StoreKey, operation: Operation) -> Command {
    Command { key: key.clone(), operation, retention: Retention::default() }
}

pub(crate) async fn apply(
    store: &RedisStore,
    key: &StoreKey,
    operation: Operation,
) -> Result<Reply, StoreError> {
    store.apply(command(key, operation)).await.map(|answer| answer.reply)
}

/// Repeats the command until it is answered, as a lock keeper does. A server that was late is
/// unavailable for a moment: a node of a cluster, or a primary whose sentinels were late.
pub(crate) async fn apply_with_retry(
    store: &RedisStore,
    key: &StoreKey,
    operation: Operation,
) -> Reply {
    for _ in 0..600 {
        match apply(store, key, operation.clone()).await {
            Ok(reply) => return reply,
            Err(error) => assert_ne!(error.kind(), StoreErrorKind::Unreadable, "{}", chain(&error)),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no answer to {operation:?}");
}

/// Acquires a key that no one else holds.
pub(crate) async fn acquire_lock(store: &RedisStore, key: &StoreKey, bits: u64) -> Grant {
    match apply_with_retry(store, key, acquire(bits)).await {
        Reply::Acquired { token, .. } => grant(token, bits),
        other => panic!("not acquired: {other:?}"),
    }
}

/// Completes a key that has no entry, with a token of long ago.
pub(crate) async fn adopt(store: &RedisStore, key: &StoreKey) -> Entry {
    let grant = grant(FencingToken::new(1).unwrap(), 1);
    assert_eq!(apply(store, key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    match store.inspect(key).await.unwrap().found {
        Found::Entry { entry, .. } => entry,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn replies(answers: Vec<Result<Answer, StoreError>>) -> Vec<Reply> {
    answers.into_iter().map(|answer| answer.unwrap().reply).collect()
}

/// Reads a number from the environment, for longer runs.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Opens a connection that bypasses the store.
pub(crate) fn raw_connection(server: &RedisServer) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Starts a replica and waits until it is in sync with its primary.
pub(crate) fn replica_of(primary: &RedisServer) -> RedisServer {
    replica_through(primary, primary.port())
}

/// The same, with a replica that connects to its primary through the port of a proxy.
pub(crate) fn replica_through(primary: &RedisServer, port: u16) -> RedisServer {
    let replica = RedisServer::start().unwrap();
    primary.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).unwrap();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port.to_string()]).unwrap();
    let entry = format!("port={},state=online", replica.port());
    let is_online =
        || primary.cli(&["INFO", "replication"]).unwrap().contains(&entry).then_some(());
    eventually(Duration::from_secs(20), is_online).expect("the replica should catch up");
    replica
}

/// Lets a server that loads its data slowly load the rest at once.
pub(crate) fn load_at_once(url: &str) {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    let set = ["SET", "key-load-delay", "0"];
    redis::cmd("CONFIG").arg(&set).exec(&mut connection).unwrap();
}

/// Counts how often the store asks a sentinel for the primary. Each query opens a connection.
pub(crate) struct QueryCounter<'a> {
    sentinel: &'a RedisServer,
    before: u64,
    /// The connections opened by the counter itself.
    own: u64,
}

impl<'a> QueryCounter<'a> {
    pub(crate) fn new(sentinel: &'a RedisServer) -> Self {
        Self { sentinel, before: connections(sentinel), own: 0 }
    }

    /// The number of queries since the counter was created.
    pub(crate) fn count(&mut self) -> u64 {
        self.own += 1;
        connections(self.sentinel) - self.before - self.own
    }
}

fn connections(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]).unwrap();
    let received = |line: &str| line.strip_prefix("total_connections_received:")?.parse().ok();
    stats.lines().find_map(received).expect("INFO should report total_connections_received")
}

/// Formats an error and all its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Runs a future and measures how long it takes.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    #[expect(clippy::disallowed_methods, reason = "bounds a test; no lock depends on it")]
    let start = std::time::Instant::now();
    let result = future.await;
    (start.elapsed(), result)
}
