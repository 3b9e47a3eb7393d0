//! The task that collects requests and starts batches.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use campanile_core::{BoxError, BoxableError};
use tokio::select;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tower_service::Service;
use tracing::Instrument;

use super::run::{Replies, run_batch};
use super::{BatchError, BatchLimits, Item, Permits};

pub(super) struct Worker<S, R, T> {
    service: S,
    items: UnboundedReceiver<Item<R, T>>,
    /// Whether more requests can arrive: a handle to the service exists.
    is_open: bool,
    limits: BatchLimits,
    permits: Arc<Permits>,
    /// The next batch, never larger than the maximum.
    waiting: Vec<Item<R, T>>,
    running: JoinSet<()>,
}

impl<S, R, T, E> Worker<S, R, T>
where
    S: Service<Vec<R>, Response = Vec<Result<T, E>>> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    E: BoxableError + 'static,
{
    pub(super) fn new(
        service: S,
        items: UnboundedReceiver<Item<R, T>>,
        limits: BatchLimits,
        permits: Arc<Permits>,
    ) -> Self {
        let (waiting, running) = (Vec::new(), JoinSet::new());
        Self { service, items, is_open: true, limits, permits, waiting, running }
    }

    /// Runs until all handles to the service are dropped, or until the service will not be ready
    /// again. Running batches continue.
    pub(super) async fn run(mut self) {
        while self.is_open || !self.waiting.is_empty() {
            self.collect().await;
            if self.waiting.is_empty() {
                continue;
            }
            match self.wait_until_ready().await {
                Ok(()) => self.start_batch(),
                Err(error) => {
                    self.close(error).await;
                    break;
                }
            }
        }
        self.running.detach_all();
    }

    /// Collects requests until the next batch should start.
    async fn collect(&mut self) {
        loop {
            while self.has_room()
                && let Ok(item) = self.items.try_recv()
            {
                self.waiting.push(item);
            }
            self.remove_cancelled();
            while self.running.try_join_next().is_some() {}
            let Some(oldest) = self.waiting.first() else {
                match self.items.recv().await {
                    Some(item) => self.waiting.push(item),
                    None => return self.is_open = false,
                }
                continue;
            };
            if !self.has_room() || self.running.is_empty() || !self.is_open {
                return;
            }
            let linger_elapsed = sleep_until(oldest.queued_at + self.limits.linger);
            select! {
                item = self.items.recv() => self.receive(item),
                _ = self.running.join_next() => {}
                () = linger_elapsed => return,
            }
        }
    }

    /// Waits until the service is ready. Requests that arrive in the meantime join the batch if
    /// there is room.
    async fn wait_until_ready(&mut self) -> Result<(), BatchError> {
        loop {
            let can_receive = self.is_open && self.has_room();
            let Self { service, items, .. } = &mut *self;
            let ready = poll_fn(|cx| {
                let poll = catch_unwind(AssertUnwindSafe(|| service.poll_ready(cx)));
                match poll {
                    Ok(poll) => poll.map_err(|error| Some(error.into().into())),
                    Err(_) => Poll::Ready(Err(None)),
                }
            });
            select! {
                biased;
                ready = ready => return ready.map_err(BatchError::Closed),
                item = items.recv(), if can_receive => self.receive(item),
            }
        }
    }

    /// Passes the batch to the service.
    fn start_batch(&mut self) {
        self.remove_cancelled();
        let batch = std::mem::take(&mut self.waiting);
        if batch.is_empty() {
            return;
        }
        let span = tracing::debug_span!("batch", requests = batch.len());
        let mut requests = Vec::with_capacity(batch.len());
        let mut replies = Vec::with_capacity(batch.len());
        for Item { request, reply, permit, span: request_span, .. } in batch {
            span.follows_from(request_span);
            requests.push(request);
            replies.push(reply);
            drop(permit);
        }
        let replies = Replies(replies);
        let call = AssertUnwindSafe(|| self.service.call(requests));
        match span.in_scope(|| catch_unwind(call)) {
            Ok(future) => drop(self.running.spawn(run_batch(future, replies).instrument(span))),
            Err(_) => replies.fail(&BatchError::Panicked),
        }
    }

    /// Fails all waiting requests and rejects new ones, because the service will not be ready
    /// again.
    async fn close(&mut self, error: BatchError) {
        self.permits.close(error.clone());
        self.items.close();
        let fail = |item: Item<R, T>| drop(item.reply.send(Err(BoxError::from(error.clone()))));
        self.waiting.drain(..).for_each(fail);
        while let Some(item) = self.items.recv().await {
            fail(item);
        }
    }

    fn receive(&mut self, item: Option<Item<R, T>>) {
        self.is_open = item.is_some();
        self.waiting.extend(item);
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < self.limits.max
    }

    fn remove_cancelled(&mut self) {
        self.waiting.retain(|item| !item.reply.is_closed());
    }
}

impl<S, R, T> Drop for Worker<S, R, T> {
    /// Rejects further requests, which nobody would process if the worker ends with its runtime.
    fn drop(&mut self) {
        self.permits.close(BatchError::Closed(None));
    }
}
