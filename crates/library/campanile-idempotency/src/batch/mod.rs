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
struct BatchLimits {
    max: usize,
    linger: Duration,
}

/// A request that waits for its batch.
struct Item<R, T> {
    request: R,
    reply: ReplySender<T>,
    /// Released when the batch starts.
    permit: OwnedSemaphorePermit,
    queued_at: Instant,
    span: Span,
}

/// Closed when the caller has dropped the response future.
type ReplySender<T> = oneshot::Sender<Result<T, BoxError>>;

/// The state shared by the worker and its callers.
struct Permits {
    /// The capacity for waiting requests. Closed when the service will not be ready again.
    semaphore: Arc<Semaphore>,
    /// The reason for the closure.
    closed: OnceLock<BatchError>,
}

impl Permits {
    fn close(&self, error: BatchError) {
        self.closed.get_or_init(|| error);
        self.semaphore.close();
    }

    /// Returns the reason for the closure, with which further requests fail.
    fn close_error(&self) -> BatchError {
        self.closed.get().cloned().unwrap_or(BatchError::Closed(None))
    }
}
