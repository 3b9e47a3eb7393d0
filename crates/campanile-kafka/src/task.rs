//! A task that ends with its handle.

use std::future::Future;
use std::panic::resume_unwind;

use tokio::task::JoinHandle;

/// Dropped, it is cancelled: its future is dropped, soon.
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    /// Starts it on the runtime of the caller.
    pub(crate) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Waits for its end. Its panic goes on in the caller.
    pub(crate) async fn join(mut self) -> T {
        match (&mut self.0).await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Only the end of the runtime cancels it, and that is our end, too.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Drops its future, and waits until that has happened.
    pub(crate) async fn cancel(mut self) {
        self.0.abort();
        // Cancelled, or just ended: both is well.
        let _ = (&mut self.0).await;
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
