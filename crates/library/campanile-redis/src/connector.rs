//! How the servers of a store are connected to.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult,
};

use crate::connection::SharedConnection;
#[cfg(test)]
use crate::simulation;
#[cfg(feature = "tls")]
use crate::tls::Certificates;
use crate::topology::Address;

/// Reads a secret. Called for each new connection, so that a rotated secret needs no restart.
pub(crate) type ReadSecret<T> = Arc<dyn Fn() -> io::Result<T> + Send + Sync>;

/// What authenticates connections.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// The user and the password. `None`: those in the URL.
    pub(crate) credentials: Option<ReadSecret<(String, String)>>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
}

/// A server, and how to connect to it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    info: ConnectionInfo,
    secrets: Secrets,
}

/// How to connect to a server, whatever its address: user, database, TLS and connect timeout.
#[derive(Clone)]
pub(crate) struct Connector {
    template: Endpoint,
    connect_timeout: Duration,
    /// See [`SharedConnection`], by the address of the server.
    silences: Arc<Mutex<BTreeMap<Address, Arc<AtomicU64>>>>,
}

/// Reads a secret, if it is set. The error names the secret.
pub(crate) fn read<T>(secret: Option<&ReadSecret<T>>, name: &str) -> io::Result<Option<T>> {
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("the {name} for Redis cannot be read: {error}"))
    };
    secret.map(|read| read().map_err(failed)).transpose()
}

impl Secrets {
    /// Adds the secrets to a server's connection info.
    pub(crate) fn apply(&self, mut info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if let Some((user, password)) = read(self.credentials.as_ref(), "password")? {
            let settings = info.redis_settings().clone().set_username(user).set_password(password);
            info = info.set_redis_settings(settings);
        }
        #[cfg(feature = "tls")]
        let info = self.certificates.apply(info)?;
        Ok(info)
    }
}

impl Endpoint {
    pub(crate) fn new(info: ConnectionInfo, secrets: Secrets) -> Self {
        Self { info, secrets }
    }

    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Opens a connection. It has no timeouts of its own; the caller sets a deadline.
    pub(crate) async fn open(&self) -> RedisResult<MultiplexedConnection> {
        #[cfg(test)]
        if let Some(simulated) = simulation::connect(&self.info, None).await {
            return simulated;
        }
        // The deadline of a call covers everything that the call waits for, so the library's own
        // timeouts are disabled.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(self.secrets.apply(self.info.clone())?)?;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(name_cause)
    }
}

/// Shows the address, and whether TLS is used: sentinels and servers may differ.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_tls = matches!(self.info.addr(), ConnectionAddr::TcpTls { .. });
        write!(f, "{} ({} TLS)", self.info.addr(), if has_tls { "with" } else { "without" })
    }
}

/// Names the usual causes of a connection that the server closes before it answers. Its refusal is
/// lost with the connection.
fn name_cause(error: RedisError) -> RedisError {
    const CAUSE: &str = "the server closed the connection before it answered, as at its limit \
        (maxclients) or if it expects TLS";
    match error.is_connection_dropped() && !error.is_connection_refusal() {
        true => (ErrorKind::Io, CAUSE, error.to_string()).into(),
        false => error,
    }
}

impl Connector {
    /// Uses the settings of `template` for every server.
    pub(crate) fn new(template: Endpoint, connect_timeout: Duration) -> Self {
        Self { template, connect_timeout, silences: Arc::default() }
    }

    /// The server at this address.
    pub(crate) fn endpoint(&self, address: &Address) -> Endpoint {
        let Address { host, port } = address.clone();
        let host = host.into();
        let Endpoint { info, secrets } = self.template.clone();
        let addr = match info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Endpoint { info: info.set_addr(addr), secrets }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn connection(&self, address: &Address) -> Arc<SharedConnection> {
        let mut silences = self.silences.lock().unwrap_or_else(PoisonError::into_inner);
        let silences = Arc::clone(silences.entry(address.clone()).or_default());
        SharedConnection::new(self.endpoint(address), self.connect_timeout, silences)
    }
}
