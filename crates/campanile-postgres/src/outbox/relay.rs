//! What is committed in the outbox is published.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Output};
use futures_util::future::{Either, Fuse, FusedFuture, FutureExt, select};
use futures_util::select_biased;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use super::session::Session;
use super::work::Work;
use crate::seldom::Seldom;
use crate::{Inbox, PgConfig};

/// Between two looks at the table, for what other processes have written; and at who leads.
const PAUSE: Duration = Duration::from_secs(1);

/// What is being published when it is to end may be acknowledged as long.
const DRAIN: Duration = Duration::from_secs(5);

impl Inbox {
    /// Publishes what handlers have [written](crate::Transaction::publish), until `shutdown` has come.
    pub fn relay<P, F>(
        &self,
        publisher: P,
        shutdown: F,
    ) -> impl Future<Output = ()> + Send + use<P, F>
    where
        P: Service<Output> + Clone + Send + Sync + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()> + Send,
    {
        let relay =
            Relay { config: self.config().clone(), written: self.written().clone(), publisher };
        async move { relay.run(pin!(shutdown.fuse())).await }
    }
}

struct Relay<P> {
    config: PgConfig,
    /// Told of each commit of this process that has written a message.
    written: Arc<Notify>,
    publisher: P,
}

impl<P> Relay<P>
where
    P: Service<Output> + Clone + Send + 'static,
    P::Error: BoxableError,
    P::Future: Send,
{
    async fn run<F: Future<Output = ()>>(self, mut shutdown: Pin<&mut Fuse<F>>) {
        let mut told = Seldom::default();
        loop {
            let error = match select(shutdown.as_mut(), pin!(self.lead())).await {
                Either::Left(_) => return,
                Either::Right((Ok(session), _)) => {
                    match self.publish(&session, shutdown.as_mut()).await {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Either::Right((Err(error), _)) => error,
            };
            if told.is_due(Instant::now()) {
                let error = &*error as &dyn std::error::Error;
                tracing::warn!(error, "the outbox cannot be reached: what is in it waits");
            }
            if let Either::Left(_) = select(shutdown.as_mut(), pin!(sleep(PAUSE))).await {
                return;
            }
        }
    }

    /// Waits until this one leads.
    async fn lead(&self) -> Result<Session, BoxError> {
        let session = Session::open(&self.config).await?;
        while !session.try_lead().await? {
            sleep(PAUSE).await;
        }
        Ok(session)
    }

    /// Publishes until the session breaks, or until it is to end.
    async fn publish<F: Future<Output = ()>>(
        &self,
        session: &Session,
        mut shutdown: Pin<&mut Fuse<F>>,
    ) -> Result<(), BoxError> {
        let mut work = Work::new(self.publisher.clone());
        let mut exchange = pin!(Fuse::terminated());
        let mut end = None;
        loop {
            let now = Instant::now();
            work.begin();
            if exchange.is_terminated() {
                match work.ask(now) {
                    Some(asked) => exchange.set(session.exchange(asked).fuse()),
                    None if end.is_some() && work.is_idle() => return Ok(()),
                    None => {}
                }
            }
            let next = [Some(now + PAUSE), work.next(now), end].into_iter().flatten().min();
            let mut pause = pin!(sleep_until(next.expect("there is a pause")).fuse());
            let mut written = pin!(self.written.notified().fuse());
            select_biased! {
                () = shutdown => {
                    work.end();
                    end = Some(now + DRAIN);
                }
                answered = exchange => {
                    let (asked, messages) = answered?;
                    work.take(messages, &asked);
                }
                published = work.published() => work.settle(published, Instant::now()),
                () = written => work.look(),
                () = pause => match end {
                    Some(end) if end <= Instant::now() => return Ok(()),
                    _ => work.look(),
                },
            }
        }
    }
}
