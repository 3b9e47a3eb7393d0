//! The service that collects requests into batches.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use campanile_core::{BoxError, BoxableError};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;

use super::worker::Worker;
use super::{BatchFuture, BatchLimits, Item, Permits};

/// Collects requests into batches. Created by [`BatchLayer`](super::BatchLayer). Clones share the
/// batches and the capacity for waiting requests.
///
/// # Panics
/// `call` panics if the service was not ready, or outside of a tokio runtime: the first call spawns
/// the task that collects requests.
pub struct BatchService<R, T> {
    /// Bounded by the permits: every sender holds one.
    items: UnboundedSender<Item<R, T>>,
    permits: Arc<Permits>,
    worker: Arc<UnstartedWorker>,
    permit: Option<OwnedSemaphorePermit>,
    acquiring: Option<Pin<Box<AcquirePermit>>>,
}

type UnstartedWorker = Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>;

type AcquirePermit = dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync;

impl<R: Send + 'static, T: Send + 'static> BatchService<R, T> {
    pub(super) fn new<S, E>(service: S, limits: BatchLimits) -> Self
    where
        S: Service<Vec<R>, Response = Vec<Result<T, E>>> + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
        E: BoxableError + 'static,
    {
        let (items, receiver) = mpsc::unbounded_channel();
        // One batch can be collected while the locks of the next one are being acquired.
        let semaphore = Arc::new(Semaphore::new(limits.max * 2));
        let permits = Arc::new(Permits { semaphore, closed: OnceLock::new() });
        let worker = Worker::new(service, receiver, limits, permits.clone()).run();
        let worker = Arc::new(UnstartedWorker::new(Some(Box::pin(worker))));
        Self { items, permits, worker, permit: None, acquiring: None }
    }
}

impl<R, T> Service<R> for BatchService<R, T> {
    type Response = T;
    type Error = BoxError;
    type Future = BatchFuture<T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.permit.is_some() {
            return Poll::Ready(Ok(()));
        }
        let semaphore = &self.permits.semaphore;
        let permit = match &mut self.acquiring {
            Some(acquiring) => ready!(acquiring.as_mut().poll(cx)).ok(),
            None => match semaphore.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(TryAcquireError::NoPermits) => {
                    let acquiring =
                        self.acquiring.insert(Box::pin(semaphore.clone().acquire_owned()));
                    ready!(acquiring.as_mut().poll(cx)).ok()
                }
                Err(TryAcquireError::Closed) => None,
            },
        };
        self.acquiring = None;
        self.permit = permit;
        Poll::Ready(match self.permit {
            Some(_) => Ok(()),
            None => Err(self.permits.close_error().into()),
        })
    }

    fn call(&mut self, request: R) -> BatchFuture<T> {
        let permit = self.permit.take().expect("`poll_ready` must be called first");
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_some() {
            // Before the worker is taken, because it panics outside of a runtime.
            let runtime = Handle::current();
            drop(worker.take().map(|worker| runtime.spawn(worker)));
        }
        drop(worker);
        let (reply, receiver) = oneshot::channel();
        let (queued_at, span) = (Instant::now(), Span::current());
        let item = Item { request, reply, permit, queued_at, span };
        if let Err(SendError(item)) = self.items.send(item) {
            // The worker has ended since `poll_ready`.
            let _ = item.reply.send(Err(self.permits.close_error().into()));
        }
        BatchFuture::new(receiver)
    }
}

impl<R, T> Clone for BatchService<R, T> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            permits: self.permits.clone(),
            worker: self.worker.clone(),
            // A permit is for one request.
            permit: None,
            acquiring: None,
        }
    }
}

impl<R, T> fmt::Debug for BatchService<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.permits.semaphore.available_permits();
        f.debug_struct("BatchService").field("free", &free).finish_non_exhaustive()
    }
}
