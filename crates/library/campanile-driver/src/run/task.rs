//! A task that is aborted when its handle is dropped.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A spawned task. Dropping the handle aborts the task, and its future is dropped soon afterwards.
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn_on(
        runtime: &Handle,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self(runtime.spawn(future))
    }

    /// Aborts the task, and waits until its future is dropped.
    pub(crate) async fn cancel(mut self) {
        self.0.abort();
        // The task was cancelled, or had just completed. Its future is dropped in either case.
        let _ = (&mut self.0).await;
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
