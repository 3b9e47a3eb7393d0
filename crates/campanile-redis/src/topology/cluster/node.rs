//! A master of a cluster.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use campanile_idempotency::StoreError;
use tokio::runtime::Handle;

use super::{Address, Inner, LOOK};
use crate::connection::{Connections, Link};

/// A master, and whether it answers.
///
/// A node that does not answer is *away*. Its commands fail at once, so that commands for other
/// nodes in the same batch do not wait for it. A background task checks the node at intervals until
/// it answers again or its slots have another master.
pub(crate) struct Node {
    pub(crate) address: Address,
    connections: Arc<Connections>,
    /// Why the node is away, if it is.
    away: Mutex<Option<Box<str>>>,
    cluster: Weak<Inner>,
}

impl Node {
    pub(super) fn new(
        address: Address,
        connections: Arc<Connections>,
        cluster: Weak<Inner>,
    ) -> Self {
        Self { address, connections, away: Mutex::default(), cluster }
    }

    pub(super) fn is_away(&self) -> bool {
        self.away().is_some()
    }

    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Gets the connection, opening it if there is none. A node that cannot be reached is away.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Link, StoreError> {
        if let Some(reason) = self.away().clone() {
            return Err(StoreError::not_sent(Away { address: self.address.clone(), reason }));
        }
        let link = self.connections.link().await;
        if let Err(error) = &link {
            self.is_missed(error.source().and_then(Error::source).unwrap_or(error));
        }
        link
    }

    /// Marks the node as away, because it did not answer or could not be reached.
    pub(crate) fn is_missed(self: &Arc<Self>, reason: &dyn fmt::Display) {
        // Without a runtime there is no task to find that the node is back.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let was_away = self.away().replace(reason.to_string().into());
        if was_away.is_none() {
            tracing::warn!(
                address = %self.address,
                %reason,
                "Redis cluster node is unavailable; failing its commands until it answers"
            );
            runtime.spawn(look_for(Watch(Arc::downgrade(self)), self.cluster.clone()));
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<Box<str>>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a node that is away until it answers or is no longer a master.
async fn look_for(watch: Watch, cluster: Weak<Inner>) {
    loop {
        // Upgraded in each round, so that the task keeps neither the cluster nor the node alive
        // while it sleeps.
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        // If no node reports the slots, the known address is checked.
        let _ = cluster.learn().await;
        let Some(node) = watch.0.upgrade().filter(|node| cluster.serves(node)) else {
            return;
        };
        let limit = cluster.command_timeout;
        if let Ok(Ok(_)) = tokio::time::timeout(limit, node.connections.link()).await {
            tracing::info!(address = %node.address, "Redis cluster node is available again");
            return;
        }
        drop((node, cluster));
        tokio::time::sleep(LOOK).await;
    }
}

/// Marks the node as available on drop, so that it is asked again. This also covers the end of the
/// task with its runtime.
struct Watch(Weak<Node>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            *node.away() = None;
        }
    }
}

/// A command was not sent, because the node has not answered recently.
#[derive(Debug)]
struct Away {
    address: Address,
    reason: Box<str>,
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, reason } = self;
        write!(f, "Redis cluster node {address} is unavailable ({reason}); probing it")
    }
}

impl Error for Away {}
