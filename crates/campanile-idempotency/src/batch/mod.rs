//! Middleware for handlers that process many requests at a time. It goes inside the idempotency
//! layer, where each request has its own lock.

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

/// When a batch starts.
#[derive(Clone, Copy, Debug)]
struct Terms {
    max: usize,
    linger: Duration,
}

/// A request that waits for its batch.
struct Item<R, T> {
    request: R,
    reply: Reply<T>,
    /// Released when the batch starts.
    place: OwnedSemaphorePermit,
    since: Instant,
    span: Span,
}

/// Closed when the caller has dropped the response future.
type Reply<T> = oneshot::Sender<Result<T, BoxError>>;

/// The state shared by the worker and its callers.
struct Places {
    /// The capacity for waiting requests. Closed when the service will not be ready again.
    free: Arc<Semaphore>,
    /// The reason for the closure.
    closed: OnceLock<BatchError>,
}

impl Places {
    fn close(&self, why: BatchError) {
        self.closed.get_or_init(|| why);
        self.free.close();
    }

    /// Returns the reason why a request got no result.
    fn why(&self) -> BatchError {
        self.closed.get().cloned().unwrap_or(BatchError::Interrupted)
    }
}
