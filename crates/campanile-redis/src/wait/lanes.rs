//! Connections that one batch at a time has for itself.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::topology::Topology;

/// Connections that one batch at a time has for itself, since it blocks them.
pub(crate) struct Lanes {
    free: Mutex<Vec<Topology>>,
    permits: Semaphore,
}

/// One of them, given back on drop.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    /// There until it is dropped.
    connections: Option<Topology>,
    _permit: SemaphorePermit<'a>,
}

impl Lanes {
    /// A lock keeper has this many batches on their way, and some more.
    pub(crate) const COUNT: usize = 8;

    /// Connections to these servers.
    pub(crate) fn to(topology: &Topology) -> Self {
        let connections: Vec<_> = (0..Self::COUNT).map(|_| topology.another()).collect();
        Self { permits: Semaphore::new(connections.len()), free: Mutex::new(connections) }
    }

    /// One that is free, or the next that will be.
    pub(crate) async fn take(&self) -> Lane<'_> {
        let permit = self.permits.acquire().await.expect("never closed");
        // The one that was used last: the others need not even be connected.
        let connections = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Lane { lanes: self, connections, _permit: permit }
    }
}

impl Deref for Lane<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        self.connections.as_ref().expect("as many are free as there are permits")
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut free = self.lanes.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.connections.take());
    }
}
