//! The connection that all calls share, and its replacement.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Namespace};
use campanile_idempotency::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, ServerError, ServerErrorKind, Value, cmd};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::{Instant, timeout};

use crate::connector::Endpoint;
#[cfg(test)]
use crate::simulation;

/// How long the check of a namespace's bucket count lasts. The count is gone if the server was
/// flushed, which breaks no connection, so this is how long a flush stays unnoticed. One read in
/// this time costs nothing.
const BUCKETS_CHECKED_FOR: Duration = Duration::from_secs(10);

/// The connection to one server. It is opened on first use, on the runtime of the caller, and again
/// after it has been discarded.
///
/// The connection is multiplexed: a call is written as soon as it is made, without waiting for the
/// answers of other calls. Each call gets a clone; checking a connection out of a pool for each call
/// would cost a round trip per call.
pub(crate) struct SharedConnection {
    endpoint: Endpoint,
    create_timeout: Duration,
    /// How often a connection to this server has not answered in time. The others, such as the lock
    /// keeper's, were probably dropped with it on the way. They are therefore replaced before they
    /// are used again, so that one fault costs one timeout.
    silences: Arc<AtomicU64>,
    address: Box<str>,
    current: Mutex<Option<OpenConnection>>,
    /// The number of connections opened so far. Locked while connecting, so that concurrent callers
    /// open a single connection.
    opened: AsyncMutex<u64>,
}

struct OpenConnection {
    connection: MultiplexedConnection,
    number: u64,
    /// The number of silences before it was opened.
    silences: u64,
    checked_namespaces: Arc<CheckedNamespaces>,
    verified: Arc<OnceCell<()>>,
}

/// The namespaces whose bucket count was checked over a connection, with the time. A new connection
/// may lead to a server that has lost its data, so it checks them again.
type CheckedNamespaces = Mutex<BTreeMap<Namespace, Instant>>;

/// A clone of the connection, for one call.
#[derive(Clone)]
pub(crate) struct ConnectionHandle {
    shared: Arc<SharedConnection>,
    number: u64,
    silences: u64,
    pub(crate) connection: MultiplexedConnection,
    checked_namespaces: Arc<CheckedNamespaces>,
    /// Set once the server's data has been checked over this connection.
    pub(crate) verified: Arc<OnceCell<()>>,
}

impl SharedConnection {
    pub(crate) fn new(
        endpoint: Endpoint,
        create_timeout: Duration,
        silences: Arc<AtomicU64>,
    ) -> Arc<Self> {
        let address = endpoint.info().addr().to_string().into_boxed_str();
        let (current, opened) = Default::default();
        Arc::new(Self { endpoint, create_timeout, silences, address, current, opened })
    }

    /// Another connection to the same server.
    pub(crate) fn with_new_connection(&self) -> Arc<Self> {
        Self::new(self.endpoint.clone(), self.create_timeout, Arc::clone(&self.silences))
    }

    /// The server.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address without the port.
    pub(crate) fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
    }

    /// Gets the connection, opening it if there is none.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<ConnectionHandle, StoreError> {
        if let Some(handle) = self.current() {
            return Ok(handle);
        }
        let mut opened = self.opened.lock().await;
        // Another task may have connected while this one waited for the lock.
        if let Some(handle) = self.current() {
            return Ok(handle);
        }
        let (checked_namespaces, verified) = <(_, Arc<OnceCell<()>>)>::default();
        let silences = self.silences.load(Ordering::Relaxed);
        let connect = async {
            #[cfg(test)]
            if let Some(simulated) =
                simulation::connect(self.endpoint.info(), Some(&verified)).await
            {
                return simulated;
            }
            self.endpoint.open().await
        };
        let connection = match timeout(self.create_timeout, connect).await {
            Ok(opened) => opened.map_err(|error| StoreError::not_sent(self.unreachable(error)))?,
            Err(elapsed) => return Err(StoreError::timeout(self.unreachable(elapsed))),
        };
        *opened += 1;
        tracing::debug!(address = %self.address, number = *opened, "connected to Redis");
        let number = *opened;
        let current = OpenConnection { connection, number, silences, checked_namespaces, verified };
        let handle = self.handle_of(&current);
        *self.lock_current() = Some(current);
        Ok(handle)
    }

    /// The current connection, if there is one.
    pub(crate) fn current(self: &Arc<Self>) -> Option<ConnectionHandle> {
        let silences = self.silences.load(Ordering::Relaxed);
        let mut current = self.lock_current();
        if current.take_if(|current| current.silences != silences).is_some() {
            let address = self.address();
            tracing::debug!(address, "replacing a connection, because another did not answer");
        }
        current.as_ref().map(|current| self.handle_of(current))
    }

    fn handle_of(self: &Arc<Self>, current: &OpenConnection) -> ConnectionHandle {
        ConnectionHandle {
            shared: Arc::clone(self),
            number: current.number,
            silences: current.silences,
            connection: current.connection.clone(),
            checked_namespaces: Arc::clone(&current.checked_namespaces),
            verified: Arc::clone(&current.verified),
        }
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<OpenConnection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, source: impl Into<BoxError>) -> Unreachable {
        Unreachable { server: self.endpoint.to_string(), source: source.into() }
    }
}

impl ConnectionHandle {
    /// Discards this connection unless that has been done already. The next call opens a new one.
    pub(crate) fn discard(&self, reason: &dyn fmt::Display) {
        let Self { shared, number, .. } = self;
        let discarded = shared.lock_current().take_if(|current| current.number == *number);
        if discarded.is_some() {
            let address = shared.address();
            tracing::warn!(
                address,
                number,
                %reason,
                "discarded a connection to Redis; the next call reconnects"
            );
        }
    }

    /// Has the other connections to this server replaced, because this one has not answered in time.
    pub(crate) fn report_silence(&self) {
        self.shared.silences.fetch_max(self.silences + 1, Ordering::Relaxed);
    }

    /// Sends one command. `asking` precedes it with `ASKING`, for a node that is importing the
    /// slot.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        if !asking {
            return connection.send_packed_command(command).await;
        }
        let mut replies = self.send_all(std::slice::from_ref(command), asking).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Sends these commands together; `asking` precedes each of them with `ASKING`. Returns one reply
    /// for each command, which may be an error: its own, or that of its `ASKING`.
    pub(crate) async fn send_all(&self, commands: &[Cmd], asking: bool) -> RedisResult<Vec<Value>> {
        // In one pipeline, because `ASKING` applies to the next command of the connection.
        let mut pipeline = Pipeline::with_capacity(2 * commands.len());
        for command in commands {
            if asking {
                pipeline.add_command(cmd("ASKING"));
            }
            pipeline.add_command(command.clone());
        }
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
        if !asking {
            return Ok(replies);
        }
        let mut replies = replies.into_iter();
        let pairs = std::iter::from_fn(|| Some((replies.next()?, replies.next()?)));
        Ok(pairs.map(|(asking, reply)| reply_after_asking(asking, reply)).collect())
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The address of the server.
    pub(crate) fn address(&self) -> &str {
        self.shared.address()
    }

    /// The address without the port.
    pub(crate) fn host(&self) -> &str {
        self.shared.host()
    }

    /// Checks whether the namespace's bucket count was checked over this connection within the last
    /// 10 s.
    pub(crate) fn has_checked_buckets(&self, namespace: &Namespace) -> bool {
        let checked = self.checked_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        checked.get(namespace).is_some_and(|at| at.elapsed() < BUCKETS_CHECKED_FOR)
    }

    /// Records that the namespace's bucket count has been checked.
    pub(crate) fn set_buckets_checked(&self, namespace: &Namespace) {
        let mut checked = self.checked_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert(namespace.clone(), Instant::now());
    }
}

/// The reply to a command that was preceded by `ASKING`. A node that has refused `ASKING` redirects
/// the command to the node that redirected it here, and so on; only the refusal says why.
fn reply_after_asking(asking: Value, reply: Value) -> Value {
    let is_moved = |error: &ServerError| error.kind() == Some(ServerErrorKind::Moved);
    match (&asking, &reply) {
        (Value::ServerError(_), Value::ServerError(error)) if is_moved(error) => asking,
        _ => reply,
    }
}

/// The error of a failed attempt to connect.
#[derive(Debug)]
struct Unreachable {
    server: String,
    source: BoxError,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis at {} cannot be reached", self.server)
    }
}

impl std::error::Error for Unreachable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests;
