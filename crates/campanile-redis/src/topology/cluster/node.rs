//! One master of a cluster.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use campanile_idempotency::StoreError;
use tokio::runtime::Handle;

use super::{Address, Inner, LOOK};
use crate::connection::{Connections, Link};

/// A master, and whether it answers.
///
/// One that does not is *away*: what is for it is refused at once, so that nothing that is for
/// others waits with it, until a look from time to time finds that it answers again, or that its
/// slots have another master.
pub(crate) struct Node {
    pub(crate) address: Address,
    connections: Arc<Connections>,
    /// Why it is away, if it is.
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

    /// The connection, made now if there is none. A node that cannot be reached is away.
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

    /// It did not answer, or cannot be reached.
    pub(crate) fn is_missed(self: &Arc<Self>, reason: &dyn fmt::Display) {
        // Without a runtime nobody would look for it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let was_away = self.away().replace(reason.to_string().into());
        if was_away.is_none() {
            tracing::warn!(address = %self.address, %reason, "a node of the Redis cluster is away");
            runtime.spawn(look_for(Watch(Arc::downgrade(self)), self.cluster.clone()));
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<Box<str>>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends when the node answers, or is a master no more.
async fn look_for(watch: Watch, cluster: Weak<Inner>) {
    loop {
        // Neither is kept from being dropped while nothing happens.
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        // Where nobody tells, it is looked for where it was.
        let _ = cluster.learn().await;
        let Some(node) = watch.0.upgrade().filter(|node| cluster.serves(node)) else {
            return;
        };
        let limit = cluster.command_timeout;
        if let Ok(Ok(_)) = tokio::time::timeout(limit, node.connections.link()).await {
            tracing::info!(address = %node.address, "a node of the Redis cluster is back");
            return;
        }
        drop((node, cluster));
        tokio::time::sleep(LOOK).await;
    }
}

/// However the looking ends, also with its runtime, the node is asked again.
struct Watch(Weak<Node>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            *node.away() = None;
        }
    }
}

/// A node was not asked, because it did not answer lately.
#[derive(Debug)]
struct Away {
    address: Address,
    reason: Box<str>,
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, reason } = self;
        write!(f, "the cluster's node at {address} is away ({reason}), and is being looked for")
    }
}

impl Error for Away {}
