//! Connections that serve one batch at a time.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::topology::Topology;

/// A pool of connections that serve one batch at a time, because a wait blocks its connection.
pub(crate) struct Lanes {
    free: Mutex<Vec<Topology>>,
    permits: Semaphore,
}

/// Connections checked out for one batch. Returned to the pool on drop.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    /// `Some` until drop.
    connections: Option<Topology>,
    _permit: SemaphorePermit<'a>,
}

impl Lanes {
    /// Enough for the batches that a lock keeper has in flight, with some to spare.
    pub(crate) const COUNT: usize = 8;

    /// Creates connections to the servers of `topology`.
    pub(crate) fn to(topology: &Topology) -> Self {
        let connections: Vec<_> = (0..Self::COUNT).map(|_| topology.another()).collect();
        Self { permits: Semaphore::new(connections.len()), free: Mutex::new(connections) }
    }

    /// Waits for free connections.
    pub(crate) async fn take(&self) -> Lane<'_> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        // The most recently used: the others may never have to connect.
        let connections = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Lane { lanes: self, connections, _permit: permit }
    }
}

impl Deref for Lane<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        self.connections.as_ref().expect("a permit guarantees a free set of connections")
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut free = self.lanes.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.connections.take());
    }
}
