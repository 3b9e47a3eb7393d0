//! Handlers that take many requests at a time, inside the layer, where each has its own lock.

mod error;
mod future;
mod layer;
mod run;
mod service;
mod worker;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use campanile_core::BoxError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use tracing::Span;

pub use self::error::BatchError;
pub use self::future::BatchFuture;
pub use self::layer::BatchLayer;
pub use self::service::BatchService;

/// When a batch begins.
#[derive(Clone, Copy, Debug)]
struct Terms {
    max: usize,
    linger: Duration,
}

/// A request that waits for its batch.
struct Item<R, T> {
    request: R,
    reply: Reply<T>,
    /// Given back when the batch begins.
    place: OwnedSemaphorePermit,
    since: Instant,
    span: Span,
}

/// Closed when nobody waits for it any more.
type Reply<T> = oneshot::Sender<Result<T, BoxError>>;

/// What the worker and those who call share.
struct Places {
    /// So many requests may wait. Closed when the service will not be ready again.
    free: Arc<Semaphore>,
    /// Why it will not.
    closed: OnceLock<BatchError>,
}

impl Places {
    fn close(&self, why: BatchError) {
        self.closed.get_or_init(|| why);
        self.free.close();
    }

    /// Why a request has no answer.
    fn why(&self) -> BatchError {
        self.closed.get().cloned().unwrap_or(BatchError::Interrupted)
    }
}
