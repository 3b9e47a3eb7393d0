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

use super::run::{Replies, run};
use super::{BatchError, Item, Places, Terms};

pub(super) struct Worker<S, R, T> {
    service: S,
    items: UnboundedReceiver<Item<R, T>>,
    /// Whether more requests can arrive: a handle to the service exists.
    open: bool,
    terms: Terms,
    places: Arc<Places>,
    /// The next batch, never larger than the maximum.
    waiting: Vec<Item<R, T>>,
    at_work: JoinSet<()>,
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
        terms: Terms,
        places: Arc<Places>,
    ) -> Self {
        let (waiting, at_work) = (Vec::new(), JoinSet::new());
        Self { service, items, open: true, terms, places, waiting, at_work }
    }

    /// Runs until all handles to the service are dropped, or until the service will not be ready
    /// again. Running batches continue.
    pub(super) async fn run(mut self) {
        while self.open || !self.waiting.is_empty() {
            self.collect().await;
            if self.waiting.is_empty() {
                continue;
            }
            match self.ready().await {
                Ok(()) => self.begin(),
                Err(why) => {
                    self.close(why).await;
                    break;
                }
            }
        }
        self.at_work.detach_all();
    }

    /// Collects requests until the next batch should start.
    async fn collect(&mut self) {
        loop {
            while self.room()
                && let Ok(item) = self.items.try_recv()
            {
                self.waiting.push(item);
            }
            self.forget_who_left();
            while self.at_work.try_join_next().is_some() {}
            let Some(oldest) = self.waiting.first() else {
                match self.items.recv().await {
                    Some(item) => self.waiting.push(item),
                    None => return self.open = false,
                }
                continue;
            };
            if !self.room() || self.at_work.is_empty() || !self.open {
                return;
            }
            let lingered = sleep_until(oldest.since + self.terms.linger);
            select! {
                item = self.items.recv() => self.take(item),
                _ = self.at_work.join_next() => {}
                () = lingered => return,
            }
        }
    }

    /// Waits until the service is ready. Requests that arrive in the meantime join the batch if
    /// there is room.
    async fn ready(&mut self) -> Result<(), BatchError> {
        loop {
            let more = self.open && self.room();
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
                item = items.recv(), if more => self.take(item),
            }
        }
    }

    /// Passes the batch to the service.
    fn begin(&mut self) {
        self.forget_who_left();
        let batch = std::mem::take(&mut self.waiting);
        if batch.is_empty() {
            return;
        }
        let span = tracing::debug_span!("batch", requests = batch.len());
        let mut requests = Vec::with_capacity(batch.len());
        let mut replies = Vec::with_capacity(batch.len());
        for Item { request, reply, place, span: of, .. } in batch {
            span.follows_from(of);
            requests.push(request);
            replies.push(reply);
            drop(place);
        }
        let replies = Replies(replies);
        let call = AssertUnwindSafe(|| self.service.call(requests));
        match span.in_scope(|| catch_unwind(call)) {
            Ok(future) => drop(self.at_work.spawn(run(future, replies).instrument(span))),
            Err(_) => replies.fail(&BatchError::Panicked),
        }
    }

    /// Fails all waiting requests and rejects new ones, because the service will not be ready
    /// again.
    async fn close(&mut self, why: BatchError) {
        self.places.close(why.clone());
        self.items.close();
        let fail = |item: Item<R, T>| drop(item.reply.send(Err(BoxError::from(why.clone()))));
        self.waiting.drain(..).for_each(fail);
        while let Some(item) = self.items.recv().await {
            fail(item);
        }
    }

    fn take(&mut self, item: Option<Item<R, T>>) {
        self.open = item.is_some();
        self.waiting.extend(item);
    }

    fn room(&self) -> bool {
        self.waiting.len() < self.terms.max
    }

    fn forget_who_left(&mut self) {
        self.waiting.retain(|item| !item.reply.is_closed());
    }
}
