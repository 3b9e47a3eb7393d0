//! The connection pool.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use deadpool_postgres::{
    Client, Manager, ManagerConfig, PoolConfig, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::future::poll_immediate;
use tokio::time::Instant;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::failure::with_advice;
use crate::hosts::{FOREIGN_SESSION, Hosts};
use crate::log_limit::LogLimit;
use crate::sessions::Sessions;
use crate::tls::Connector;
use crate::watch::Watch;

/// Keepalive settings, used where the URL sets none: a client or a server that sends nothing is
/// considered dead after 25 s. That is less than the lifetime of a lock, because a session holds
/// its row locks as long as the server considers its client alive.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(25);

/// A warning says that a commit has not reached its standby, so none may be left out.
const REPORT_WARNINGS: &str = "SELECT pg_catalog.set_config('client_min_messages', 'warning', false) \
    WHERE pg_catalog.current_setting('client_min_messages') = 'error'";

/// Lends connections, each to one user at a time.
#[derive(Clone)]
pub(crate) struct Pool {
    pool: deadpool_postgres::Pool,
    address: Arc<str>,
    pub(crate) sessions: Arc<Sessions>,
    log_limit: Arc<Mutex<LogLimit>>,
}

/// A connection in use. [`release`](Self::release) returns it to the pool. Dropping it without
/// `release` closes it, because an answer may still be pending or the connection may be dead.
pub(crate) struct Lease(Option<Client>);

impl Pool {
    /// Creates a pool of at most `connections` connections. Each session starts with `settings`; if
    /// they are empty, nothing is set.
    pub(crate) fn new(
        mut config: Config,
        connector: Connector,
        connections: usize,
        connect_timeout: Duration,
        settings: &str,
        watch: Arc<Watch>,
    ) -> Self {
        let address: Arc<str> = format_address(&config).into();
        let sessions = Sessions::new(connections, address.clone(), watch);
        if config.get_application_name().is_none() {
            config.application_name("campanile");
        }
        // A replica would reject every operation.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(connect_timeout);
        let keepalives = set_keepalives(&mut config);
        let settings = match settings {
            "" => String::new(),
            settings => format!("{keepalives}; {REPORT_WARNINGS}; {settings}"),
        };
        let hosts = Hosts::new(&config, connector, settings, sessions.clone());
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // `hosts` already has the configuration.
        let manager = Manager::from_connect(Config::new(), hosts, recycling);
        let pool = deadpool_postgres::Pool::builder(manager)
            .config(PoolConfig::new(connections))
            .create_timeout(Some(connect_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .expect("the pool has the runtime that its timeout needs");
        Self { pool, address, sessions, log_limit: Arc::default() }
    }

    /// The servers' hosts and ports, and the database.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Checks whether a failed call may be logged now.
    pub(crate) fn allows_log(&self) -> bool {
        let mut log_limit = self.log_limit.lock().unwrap_or_else(PoisonError::into_inner);
        log_limit.allow(Instant::now())
    }

    /// Waits until a connection is free or opened. A connection is opened in a task, which continues if
    /// the caller gives up: a call times out, and the next call gets its connection. The caller gives up
    /// after `patience` at the latest.
    pub(crate) async fn lease(&self, patience: Duration) -> Result<Lease, StoreError> {
        let client = self.client(patience).await.map_err(|error| self.unreachable(error))?;
        Ok(Lease(Some(client)))
    }

    /// Like `lease`, but the caller may keep the connection as long as the pool.
    pub(crate) async fn client(&self, patience: Duration) -> Result<Client, PoolError> {
        // A task that waits for other connections ends soon after its caller has given up.
        let wait = Some(patience.saturating_add(Duration::from_secs(1)));
        let timeouts = Timeouts { wait, ..self.pool.timeouts() };
        let pool = self.pool.clone();
        let mut getting = Box::pin(async move { pool.timeout_get(&timeouts).await });
        match poll_immediate(&mut getting).await {
            Some(result) => result,
            // The task is dropped only with its runtime.
            None => tokio::spawn(getting).await.unwrap_or(Err(PoolError::Closed)),
        }
    }

    /// Closes all idle connections, because another connection of the pool was found broken.
    pub(crate) fn close_idle(&self) {
        self.pool.retain(|_, _| false);
    }

    /// The error of a call for which no connection could be opened.
    fn unreachable(&self, error: PoolError) -> StoreError {
        let source: BoxError = match error {
            // A pooler that shares sessions was put before the server, or was not noticed at the start.
            PoolError::Backend(error)
                if error.code().is_some_and(|state| state.code() == FOREIGN_SESSION) =>
            {
                return self.misconfigured(with_advice(error));
            }
            PoolError::Backend(error) => with_advice(error),
            error => error.into(),
        };
        StoreError::not_sent(Unreachable { address: self.address.clone(), source })
    }

    /// The error of a call behind a pooler that shares sessions: only another pooler helps.
    pub(crate) fn misconfigured(&self, source: BoxError) -> StoreError {
        StoreError::misconfigured(Unreachable { address: self.address.clone(), source })
    }

    /// The error of a call for which no connection became free in time.
    pub(crate) fn timed_out(&self, limit: Duration) -> StoreError {
        let (status, address) = (self.pool.status(), &self.address);
        StoreError::not_sent(format!(
            "timed out after {limit:?} waiting for a connection to Postgres at {address}; {} of at most \
             {} connections are open or being opened, and {} were abandoned in a call that the \
             server may still be performing",
            status.size,
            status.max_size,
            self.sessions.closed()
        ))
    }
}

impl Lease {
    /// Puts the connection back into the pool. Every request sent over it must have been answered.
    pub(crate) fn release(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Lease {
    type Target = Client;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("only `release` and `drop` take the client")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            tracing::debug!("discarded a connection to Postgres");
            // Removes the connection from the pool for good. Returned to the pool, it would be lent
            // again.
            drop(Client::take(client));
        }
    }
}

/// Makes client and server probe each other. Returns the statements that set up the server's side.
fn set_keepalives(config: &mut Config) -> String {
    // The value that `tokio_postgres` uses if the URL sets none.
    const LIBRARY_DEFAULT: Duration = Duration::from_secs(2 * 60 * 60);
    if config.get_keepalives_idle() == LIBRARY_DEFAULT {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_PROBES);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(DEAD_PEER_TIMEOUT);
    }
    let settings = [
        ("tcp_keepalives_idle", KEEPALIVE_IDLE.as_secs()),
        ("tcp_keepalives_interval", KEEPALIVE_INTERVAL.as_secs()),
        ("tcp_keepalives_count", KEEPALIVE_PROBES.into()),
        ("tcp_user_timeout", DEAD_PEER_TIMEOUT.as_secs() * 1000),
    ];
    let options = config.get_options().unwrap_or_default();
    let missing = settings.iter().filter(|(name, _)| !options.contains(name));
    let settings: Vec<_> = missing.map(|(name, value)| format!("SET {name} = {value}")).collect();
    settings.join("; ")
}

/// Formats the hosts with their ports, and the database, without credentials.
pub(crate) fn format_address(config: &Config) -> String {
    const PORT: u16 = 5432;
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
    let mut hosts: Vec<String> = Vec::new();
    for (index, host) in config.get_hosts().iter().enumerate() {
        hosts.push(match host {
            Host::Tcp(name) => format!("{name}:{}", port(index)),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{}", path.display(), port(index)),
        });
    }
    if hosts.is_empty() {
        let addresses = config.get_hostaddrs().iter().enumerate();
        hosts.extend(addresses.map(|(index, ip)| format!("{ip}:{}", port(index))));
    }
    let database = config.get_dbname().map_or(String::new(), |name| format!("/{name}"));
    format!("{}{database}", hosts.join(","))
}

#[derive(Debug)]
struct Unreachable {
    address: Arc<str>,
    source: BoxError,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres at {} cannot be reached", self.address)
    }
}

impl std::error::Error for Unreachable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{Command, IdempotencyKey, Operation, Owner, Retention, StoreKey};
    use campanile_core::{FencingToken, Grant, Reply};
    use campanile_idempotency::{Store, StoreErrorKind};
    use campanile_test::PgServer;

    use super::*;
    use crate::{PgConfig, PgStore, migrate};

    /// As behind a pooler that shares sessions and knows the prepared statements of each connection.
    #[tokio::test]
    async fn foreign_session_ends_acquires_and_no_settlement() {
        let server = PgServer::start().unwrap();
        let minute = Duration::from_secs(60);
        let config = PgConfig::new(server.url()).with_command_timeout(minute);
        let config = config.with_connect_timeout(minute).with_connections(1);
        migrate(config.clone()).await.unwrap();
        let store = PgStore::connect(config).await.unwrap();
        let owner = Owner::new(1).unwrap();
        let apply = async |key: &'static str, operation| {
            let key = IdempotencyKey::new(key).unwrap();
            let key = StoreKey::new("payments".try_into().unwrap(), &key);
            let command = Command { key, operation, retention: Retention::default() };
            store.apply(command).await.map(|answer| answer.reply)
        };
        let acquire = async |key| {
            let operation = Operation::Acquire {
                owner,
                ttl: minute,
                max_attempts: 1,
                fingerprint: None,
                floor: FencingToken::ZERO,
                details: None,
            };
            apply(key, operation).await
        };
        acquire("opens the connection").await.unwrap();
        // The other session has none of the settings.
        let lease = store.0.pool.lease(minute).await.unwrap();
        lease.batch_execute("RESET ALL").await.unwrap();
        lease.release();
        tokio::time::pause();
        tokio::time::advance(minute).await;
        tokio::time::resume();
        let answered = acquire("answered").await.unwrap();
        let Reply::Acquired { token, attempt, .. } = answered else { panic!("{answered:?}") };
        for key in ["refused", "refused again"] {
            let error = acquire(key).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
            let text = format!("{:?}", std::error::Error::source(&error).unwrap());
            assert!(text.contains("pool_mode = session"), "{text}");
        }
        let (grant, fingerprint, reply, details) = (Grant { token, owner }, None, None, None);
        let complete = Operation::Complete { grant, attempt, fingerprint, reply, details };
        assert_eq!(apply("answered", complete).await.unwrap(), Reply::Completed);
    }

    #[test]
    fn both_sides_send_keepalives_unless_the_url_says_otherwise() {
        let parse = |url: &str| -> Config { url.parse().unwrap() };
        let set = |url: &str| {
            let mut config = parse(url);
            let statements = set_keepalives(&mut config);
            (config, statements)
        };
        const CLIENT: &str =
            "keepalives_idle=10 keepalives_interval=5 keepalives_retries=3 tcp_user_timeout=25";
        let statements = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
                          SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";
        let expected = parse(&format!("host=db {CLIENT}"));
        assert_eq!(set("host=db"), (expected, statements.to_owned()));
        let client = "host=db keepalives_idle=60 keepalives_interval=7 keepalives_retries=8 tcp_user_timeout=90";
        assert_eq!(set(client), (parse(client), statements.to_owned()));
        let server = "host=db options='-c tcp_keepalives_idle=60 -c tcp_user_timeout=90000'";
        let statements = "SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3";
        let expected = parse(&format!("{server} {CLIENT}"));
        assert_eq!(set(server), (expected, statements.to_owned()));
    }
}
