//! A retry policy that waits for locks.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use campanile_core::BoxError;
use tokio::time::{Instant, timeout};
use tower::retry::Policy;

use crate::keeper::wait_at_most;
use crate::{IdempotencyError, SettledFuture};

/// A policy for tower's `Retry` *around* the idempotency layer. It waits while another owner holds
/// the key or the key's backoff runs, and retries. Each retry acquires the key again.
///
/// ```
/// use std::time::Duration;
/// use campanile_core::{BoxError, ConfigError, DecodeLayer, Request, key};
/// use campanile_idempotency::{IdempotencyLayer, MemoryStore, WaitForLock};
/// use tower::ServiceBuilder;
///
/// # fn main() -> Result<(), ConfigError> {
/// let service = ServiceBuilder::new()
///     // waits up to a minute for the owner of the key
///     .retry(WaitForLock::new(Duration::from_secs(60)))
///     .layer(DecodeLayer::raw())
///     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::header("id"))?)
///     .service_fn(async |_: Request| Ok::<_, BoxError>(()));
/// # let _: &dyn std::any::Any = &0;
/// # fn serve<S: tower::Service<campanile_core::Record>>(_: S) {}
/// # serve(service);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WaitForLock {
    at_most: Duration,
    retries_failures: bool,
    /// The beginning of the first wait.
    started_at: Option<Instant>,
    /// The signal of the last wait. Kept for the next try, which may be answered from it.
    waited: Option<SettledFuture>,
}

impl WaitForLock {
    /// Creates a policy that waits for at most this time in total, and then fails with the last
    /// error.
    pub fn new(at_most: Duration) -> Self {
        Self { at_most, retries_failures: false, started_at: None, waited: None }
    }

    /// Also retries failed attempts: waits for the backoff, and runs the handler again while attempts
    /// are left. Default: the error of a failed attempt is returned at once.
    pub fn retrying_failures(self) -> Self {
        Self { retries_failures: true, ..self }
    }

    fn wait(&mut self, error: &BoxError) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let error = IdempotencyError::find(&**error)?;
        let should_wait = match error {
            IdempotencyError::AttemptFailed(_) => self.retries_failures,
            error => error.is_contention(),
        };
        let after = error.retry_after().filter(|_| should_wait)?;
        let settled = match error {
            IdempotencyError::Locked { settled, .. } => settled.clone(),
            _ => None,
        };
        self.waited = settled.clone();
        Some(Box::pin(wait_at_most(settled, after)))
    }
}

impl<R: Clone, T> Policy<R, T, BoxError> for WaitForLock {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(&mut self, _: &mut R, result: &mut Result<T, BoxError>) -> Option<Self::Future> {
        let wait = self.wait(result.as_ref().err()?)?;
        let waited = self.started_at.get_or_insert_with(Instant::now).elapsed();
        let remaining = self.at_most.saturating_sub(waited);
        if remaining.is_zero() {
            return None;
        }
        Some(Box::pin(async move { drop(timeout(remaining, wait).await) }))
    }

    fn clone_request(&mut self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}
