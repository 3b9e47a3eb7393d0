//! A task that is aborted with its handle.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A spawned task. Dropping it aborts the task: its future is dropped, soon.
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    /// Spawns a task on this runtime.
    pub(crate) fn spawn_on(
        runtime: &Handle,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self(runtime.spawn(future))
    }

    /// Aborts the task, and waits until its future is dropped.
    pub(crate) async fn cancel(mut self) {
        self.0.abort();
        // Cancelled, or completed just before: its future is gone either way.
        let _ = (&mut self.0).await;
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
