//! Connections that serve one batch at a time.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::topology::Topology;

/// A pool of connections that serve one batch at a time, because a wait blocks its connection.
pub(crate) struct ConnectionPool {
    free: Mutex<Vec<Topology>>,
    permits: Semaphore,
}

/// Connections checked out for one batch. Returned to the pool on drop.
pub(crate) struct PooledConnections<'a> {
    pool: &'a ConnectionPool,
    /// `Some` until drop.
    connections: Option<Topology>,
    _permit: SemaphorePermit<'a>,
}

impl ConnectionPool {
    /// Enough for the batches that a lock keeper has in flight, with some to spare.
    pub(crate) const SIZE: usize = 8;

    /// Creates connections to the servers of `topology`.
    pub(crate) fn new(topology: &Topology) -> Self {
        let connections: Vec<_> =
            (0..Self::SIZE).map(|_| topology.with_new_connections()).collect();
        Self { permits: Semaphore::new(connections.len()), free: Mutex::new(connections) }
    }

    /// Waits for free connections.
    pub(crate) async fn get(&self) -> PooledConnections<'_> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        // The most recently used: the others may never have to connect.
        let connections = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        PooledConnections { pool: self, connections, _permit: permit }
    }
}

impl Deref for PooledConnections<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        self.connections.as_ref().expect("a permit guarantees a free set of connections")
    }
}

impl Drop for PooledConnections<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.connections.take());
    }
}
