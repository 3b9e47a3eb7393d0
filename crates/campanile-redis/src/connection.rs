//! The connection that all calls share, and its replacement.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Namespace};
use campanile_idempotency::StoreError;
use deadpool_redis::{Connection, Manager, Pool, PoolConfig, PoolError, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, RedisResult, Value, cmd,
};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

/// Makes the connection when it is first needed, on the runtime that needs it, and anew when it has
/// been discarded.
///
/// The connection is multiplexed: calls are written to it as they come, and none waits for
/// another's answer. So it is checked out of the pool once and held, and each call gets a clone; a
/// checkout for each call would cost a round trip each time.
pub(crate) struct Connections {
    pool: Pool,
    info: ConnectionInfo,
    create_timeout: Duration,
    address: Box<str>,
    held: Mutex<Option<Held>>,
    /// How many were made. Locked while one is, so that it is one, and not one for each call that
    /// waits.
    made: AsyncMutex<u64>,
}

struct Held {
    /// Keeps its place in the pool.
    checked_out: Connection,
    number: u64,
    /// The namespaces whose buckets were compared over this connection. Another one may lead to a
    /// server that has lost its data, so there they are compared anew.
    compared: Arc<Mutex<BTreeSet<Namespace>>>,
    met: Arc<OnceCell<()>>,
}

/// A clone of the connection, for one call.
#[derive(Clone)]
pub(crate) struct Link {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) connection: MultiplexedConnection,
    compared: Arc<Mutex<BTreeSet<Namespace>>>,
    /// Set when the server at its end was looked at.
    pub(crate) met: Arc<OnceCell<()>>,
}

impl Connections {
    pub(crate) fn new(info: ConnectionInfo, create_timeout: Duration) -> Arc<Self> {
        // The deadline of a call bounds all that it waits for; the library's own, for each answer,
        // would only be a second one.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(create_timeout))
            .set_response_timeout(None);
        let address = info.addr().to_string().into_boxed_str();
        let manager =
            Manager::new_with_config(info.clone(), config).expect("it is no URL to be read");
        let timeouts = Timeouts {
            wait: Some(create_timeout),
            create: Some(create_timeout),
            recycle: Some(create_timeout),
        };
        let pool = Pool::builder(manager)
            .config(PoolConfig { timeouts, ..PoolConfig::new(1) })
            .runtime(Runtime::Tokio1)
            .build()
            .expect("timeouts need a runtime, and there is one");
        let (held, made) = Default::default();
        Arc::new(Self { pool, info, create_timeout, address, held, made })
    }

    /// To the same server, of its own.
    pub(crate) fn another(&self) -> Arc<Self> {
        Self::new(self.info.clone(), self.create_timeout)
    }

    /// How the server is reached.
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its address without the port.
    pub(crate) fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
    }

    /// The connection, made now if there is none.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Link, StoreError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let mut made = self.made.lock().await;
        // Somebody else may have been faster.
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let checked_out = self.pool.get().await.map_err(|error| self.unreachable(error))?;
        *made += 1;
        tracing::debug!(address = %self.address, number = *made, "connected to Redis");
        let (compared, met) = Default::default();
        let held = Held { checked_out, number: *made, compared, met };
        let link = self.link_of(&held);
        *self.held() = Some(held);
        Ok(link)
    }

    /// The connection, if there is one.
    pub(crate) fn current(self: &Arc<Self>) -> Option<Link> {
        self.held().as_ref().map(|held| self.link_of(held))
    }

    fn link_of(self: &Arc<Self>, held: &Held) -> Link {
        Link {
            connections: Arc::clone(self),
            number: held.number,
            connection: (*held.checked_out).clone(),
            compared: Arc::clone(&held.compared),
            met: Arc::clone(&held.met),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, error: PoolError) -> StoreError {
        let is_timeout = matches!(error, PoolError::Timeout(_));
        let source: BoxError = match error {
            PoolError::Backend(error) => error.into(),
            error => error.into(),
        };
        let unreachable = Unreachable { address: self.address.clone(), source };
        if is_timeout {
            StoreError::timeout(unreachable)
        } else {
            StoreError::not_sent(unreachable)
        }
    }
}

/// A connection for one question, whose time is bounded by who asks.
pub(crate) async fn open(info: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

impl Link {
    /// Gives this connection up, unless that was done; the next call makes another.
    pub(crate) fn discard(&self, reason: &dyn fmt::Display) {
        let Self { connections, number, .. } = self;
        let given_up = connections.held().take_if(|held| held.number == *number);
        if let Some(held) = given_up {
            // Taken out of the pool for good: put back, it would be handed out again.
            drop(Connection::take(held.checked_out));
            let address = connections.address();
            tracing::warn!(address, number, %reason, "gave up a connection to Redis");
        }
    }

    /// Sends one command; `asking`, to a node that does not have the key's slot yet.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        if !asking {
            return connection.send_packed_command(command).await;
        }
        // Together, so that no other command is taken for the one that it was said of.
        let mut pair = Pipeline::with_capacity(2);
        pair.add_command(cmd("ASKING")).add_command(command.clone());
        let mut replies = connection.send_packed_commands(&pair, 1, 1).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Whether it is the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.connections, &other.connections)
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> &str {
        self.connections.address()
    }

    /// Its address without the port.
    pub(crate) fn host(&self) -> &str {
        self.connections.host()
    }

    /// Whether the namespace's buckets were compared over this connection.
    pub(crate) fn has_compared(&self, namespace: &Namespace) -> bool {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// They were.
    pub(crate) fn note_compared(&self, namespace: &Namespace) {
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        compared.insert(namespace.clone());
    }
}

/// No connection could be made.
#[derive(Debug)]
struct Unreachable {
    address: Box<str>,
    source: BoxError,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis at {} cannot be reached", self.address)
    }
}

impl std::error::Error for Unreachable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
