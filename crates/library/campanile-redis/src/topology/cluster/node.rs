//! A master of a cluster.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use campanile_idempotency::StoreError;
use tokio::runtime::Handle;

use super::{Address, ClusterInner, PROBE_INTERVAL};
use crate::connection::{ConnectionHandle, SharedConnection};

/// A master, and whether it answers.
///
/// A node that does not answer is *unavailable*. Its commands fail at once, so that commands for
/// other nodes in the same batch do not wait for it. A background task checks the node at intervals
/// until it answers again or its slots have another master.
pub(crate) struct Node {
    pub(crate) address: Address,
    connection: Arc<SharedConnection>,
    /// Why the node is unavailable, if it is.
    unavailable_reason: Mutex<Option<Box<str>>>,
    cluster: Weak<ClusterInner>,
}

impl Node {
    pub(super) fn new(
        address: Address,
        connection: Arc<SharedConnection>,
        cluster: Weak<ClusterInner>,
    ) -> Self {
        Self { address, connection, unavailable_reason: Mutex::default(), cluster }
    }

    pub(super) fn is_unavailable(&self) -> bool {
        self.unavailable_reason().is_some()
    }

    pub(super) fn shared_connection(&self) -> &Arc<SharedConnection> {
        &self.connection
    }

    /// Gets the connection, opening it if there is none. A node that cannot be reached is
    /// unavailable.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<ConnectionHandle, StoreError> {
        if let Some(reason) = self.unavailable_reason().clone() {
            return Err(StoreError::not_sent(NodeUnavailable {
                address: self.address.clone(),
                reason,
            }));
        }
        let handle = self.connection.get().await;
        if let Err(error) = &handle {
            self.mark_unavailable(error.source().and_then(Error::source).unwrap_or(error));
        }
        handle
    }

    /// Marks the node as unavailable, because it did not answer or could not be reached.
    pub(crate) fn mark_unavailable(self: &Arc<Self>, reason: &dyn fmt::Display) {
        // Without a runtime there is no task to find that the node is back.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let previous_reason = self.unavailable_reason().replace(reason.to_string().into());
        if previous_reason.is_none() {
            tracing::warn!(
                address = %self.address,
                %reason,
                "Redis cluster node is unavailable; failing its commands until it answers"
            );
            runtime.spawn(probe(ProbeGuard(Arc::downgrade(self)), self.cluster.clone()));
        }
    }

    fn unavailable_reason(&self) -> MutexGuard<'_, Option<Box<str>>> {
        self.unavailable_reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks an unavailable node until it answers or is no longer a master.
async fn probe(guard: ProbeGuard, cluster: Weak<ClusterInner>) {
    loop {
        // Upgraded in each round, so that the task keeps neither the cluster nor the node alive
        // while it sleeps.
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        // If no node reports the slots, the known address is checked.
        let _ = cluster.refresh_slots().await;
        let Some(node) = guard.0.upgrade().filter(|node| cluster.is_master(node)) else {
            return;
        };
        let limit = cluster.command_timeout;
        if let Ok(Ok(_)) = tokio::time::timeout(limit, node.connection.get()).await {
            tracing::info!(address = %node.address, "Redis cluster node is available again");
            return;
        }
        drop((node, cluster));
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

/// Marks the node as available on drop, so that it is asked again. This also covers the end of the
/// task with its runtime.
struct ProbeGuard(Weak<Node>);

impl Drop for ProbeGuard {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            *node.unavailable_reason() = None;
        }
    }
}

/// A command was not sent, because the node has not answered recently.
#[derive(Debug)]
struct NodeUnavailable {
    address: Address,
    reason: Box<str>,
}

impl fmt::Display for NodeUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, reason } = self;
        write!(f, "Redis cluster node {address} is unavailable ({reason}); probing it")
    }
}

impl Error for NodeUnavailable {}
