//! The service that collects requests into batches.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use campanile_core::{BoxError, BoxableError};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;

use super::worker::Worker;
use super::{BatchFuture, Item, Places, Terms};

/// Collects requests into batches. Created by [`BatchLayer`](super::BatchLayer). Clones share the
/// batches and the capacity for waiting requests.
///
/// # Panics
/// `call` panics if the service was not ready, or outside of a tokio runtime: the first call spawns
/// the task that collects requests.
pub struct BatchService<R, T> {
    /// Bounded by the permits: every sender holds one.
    items: UnboundedSender<Item<R, T>>,
    places: Arc<Places>,
    worker: Arc<NotStarted>,
    place: Option<OwnedSemaphorePermit>,
    waits: Option<Pin<Box<WaitForPlace>>>,
}

type NotStarted = Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>;

type WaitForPlace = dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync;

impl<R: Send + 'static, T: Send + 'static> BatchService<R, T> {
    pub(super) fn new<S, E>(service: S, terms: Terms) -> Self
    where
        S: Service<Vec<R>, Response = Vec<Result<T, E>>> + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
        E: BoxableError + 'static,
    {
        let (items, received) = mpsc::unbounded_channel();
        // One batch can be collected while the locks of the next one are being acquired.
        let free = Arc::new(Semaphore::new(terms.max * 2));
        let places = Arc::new(Places { free, closed: OnceLock::new() });
        let worker = Worker::new(service, received, terms, places.clone()).run();
        let worker = Arc::new(NotStarted::new(Some(Box::pin(worker))));
        Self { items, places, worker, place: None, waits: None }
    }
}

impl<R, T> Service<R> for BatchService<R, T> {
    type Response = T;
    type Error = BoxError;
    type Future = BatchFuture<T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.place.is_some() {
            return Poll::Ready(Ok(()));
        }
        let free = &self.places.free;
        let place = match &mut self.waits {
            Some(waits) => ready!(waits.as_mut().poll(cx)).ok(),
            None => match free.clone().try_acquire_owned() {
                Ok(place) => Some(place),
                Err(TryAcquireError::NoPermits) => {
                    let waits = self.waits.insert(Box::pin(free.clone().acquire_owned()));
                    ready!(waits.as_mut().poll(cx)).ok()
                }
                Err(TryAcquireError::Closed) => None,
            },
        };
        self.waits = None;
        self.place = place;
        Poll::Ready(match self.place {
            Some(_) => Ok(()),
            None => Err(self.places.why().into()),
        })
    }

    fn call(&mut self, request: R) -> BatchFuture<T> {
        let place = self.place.take().expect("`poll_ready` must be called first");
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            drop(tokio::spawn(worker));
        }
        let (reply, replied) = oneshot::channel();
        let (since, span) = (Instant::now(), Span::current());
        // If the worker is gone, it has recorded the reason, which the future returns because its
        // sender is dropped here.
        let _ = self.items.send(Item { request, reply, place, since, span });
        BatchFuture::new(replied, self.places.clone())
    }
}

impl<R, T> Clone for BatchService<R, T> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            places: self.places.clone(),
            worker: self.worker.clone(),
            // A permit is for one request.
            place: None,
            waits: None,
        }
    }
}

impl<R, T> fmt::Debug for BatchService<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.places.free.available_permits();
        f.debug_struct("BatchService").field("free", &free).finish_non_exhaustive()
    }
}
