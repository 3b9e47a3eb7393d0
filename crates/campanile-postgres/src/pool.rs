//! The connections.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use deadpool_postgres::{
    Client, Manager, ManagerConfig, PoolConfig, PoolError, RecyclingMethod, Runtime,
};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::failure::explained;
use crate::hosts::Hosts;
use crate::tls::Connector;

/// What a client or a server that says nothing is given up after, where the URL sets no other time: 25 s,
/// less than a lock lives, for a session holds its rows as long as its server believes in it.
const IDLE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
const SILENCE: Duration = Duration::from_secs(25);

/// Hands connections out for one use at a time.
#[derive(Clone)]
pub(crate) struct Pool {
    pool: deadpool_postgres::Pool,
    address: Arc<str>,
}

/// A connection in use. It goes back by [`end`](Self::end); dropped without that it is closed, for it
/// may still have an answer to come, or lead nowhere.
pub(crate) struct Lease(Option<Client>);

impl Pool {
    /// So many connections at most. Each session begins with these settings.
    pub(crate) fn new(
        mut config: Config,
        connector: Connector,
        connections: usize,
        connect_timeout: Duration,
        settings: &str,
    ) -> Self {
        let address = address(&config).into();
        if config.get_application_name().is_none() {
            config.application_name("campanile");
        }
        // A replica would refuse every operation.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(connect_timeout);
        let settings = format!("{}; {settings}", probing(&mut config));
        let hosts = Hosts::new(&config, connector, settings, connect_timeout);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // The hosts have it.
        let manager = Manager::from_connect(Config::new(), hosts, recycling);
        let pool = deadpool_postgres::Pool::builder(manager)
            .config(PoolConfig::new(connections))
            .create_timeout(Some(connect_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a timeout needs a runtime, and there is one");
        Self { pool, address }
    }

    /// Where the servers are, and the database.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection, once one is free.
    pub(crate) async fn lease(&self) -> Result<Lease, PoolError> {
        Ok(Lease(Some(self.client().await?)))
    }

    /// The same, to be kept as long as the pool.
    pub(crate) async fn client(&self) -> Result<Client, PoolError> {
        self.pool.get().await
    }

    /// Closes the connections that nobody uses: one like them was found to be broken.
    pub(crate) fn renew(&self) {
        self.pool.retain(|_, _| false);
    }

    /// What is said of a store that could not be asked.
    pub(crate) fn unreachable(&self, error: PoolError) -> StoreError {
        let source: BoxError = match error {
            PoolError::Backend(error) => explained(error),
            error => error.into(),
        };
        StoreError::not_sent(Unreachable { address: self.address.clone(), source })
    }

    /// What is said of one for which no connection came free in time.
    pub(crate) fn exhausted(&self, limit: Duration) -> StoreError {
        let (status, address) = (self.pool.status(), &self.address);
        StoreError::not_sent(format!(
            "no connection to Postgres at {address} was had within {limit:?}; {} of at most {} are \
             open or being opened",
            status.size, status.max_size
        ))
    }
}

impl Lease {
    /// All that was asked over it was answered: it can be used again.
    pub(crate) fn end(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Lease {
    type Target = Client;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it is taken at the end only")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            tracing::debug!("gave up a connection to Postgres");
            // Taken out of the pool for good: put back, it would be handed out again.
            drop(Client::take(client));
        }
    }
}

/// Lets both sides look whether the other is there. Says what the server is to be told.
fn probing(config: &mut Config) -> String {
    // As it is where the URL says nothing.
    const NOT_SET: Duration = Duration::from_secs(2 * 60 * 60);
    if config.get_keepalives_idle() == NOT_SET {
        config.keepalives_idle(IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(PROBES);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    let settings = [
        ("tcp_keepalives_idle", IDLE.as_secs()),
        ("tcp_keepalives_interval", INTERVAL.as_secs()),
        ("tcp_keepalives_count", PROBES.into()),
        ("tcp_user_timeout", SILENCE.as_secs() * 1000),
    ];
    let given = config.get_options().unwrap_or_default();
    let missing = settings.iter().filter(|(name, _)| !given.contains(name));
    let settings: Vec<_> = missing.map(|(name, value)| format!("SET {name} = {value}")).collect();
    settings.join("; ")
}

/// Hosts with their ports, and the database; no credentials.
pub(crate) fn address(config: &Config) -> String {
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
