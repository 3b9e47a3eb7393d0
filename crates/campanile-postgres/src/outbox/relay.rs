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
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// What is being published when it is to end may be acknowledged as long.
const DRAIN: Duration = Duration::from_secs(5);

impl Inbox {
    /// Publishes what handlers have [written](crate::Transaction::publish) to the outbox, until `shutdown` has
    /// come: each message **at least once, and those of one topic and key in their order**. `publisher` is any
    /// service that answers `Ok` once a message is safe, such as the `Publisher` of `campanile-kafka`.
    ///
    /// ```
    /// use campanile_core::{BoxError, Output};
    /// use campanile_postgres::{Inbox, PgStore, Transaction};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), BoxError> {
    /// # let postgres = campanile_test::PgServer::start()?;
    /// # campanile_postgres::migrate(postgres.url()).await?;
    /// # let url = postgres.url();
    /// let inbox = Inbox::new(&PgStore::connect(url).await?)?;
    /// // in place of brokers
    /// let (published, mut messages) = tokio::sync::mpsc::unbounded_channel();
    /// let publisher = tower::service_fn(move |message: Output| {
    ///     let published = published.clone();
    ///     async move { published.send(message) }
    /// });
    /// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    /// let relay = tokio::spawn(inbox.relay(publisher, async { drop(stopped.await) }));
    ///
    /// // a handler of the inbox
    /// let bill = async |tx: Transaction| tx.publish(Output::to("bills").key("a-17").payload("100")).await;
    /// inbox.guard("payments")?.run("payment-1", bill).await?;
    ///
    /// let message = messages.recv().await.ok_or("it was published")?;
    /// assert_eq!(message.key.as_deref(), Some(&b"a-17"[..]));
    /// assert_eq!(message.headers[0].0, "idempotency-key");
    /// drop(stop);
    /// relay.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What holds
    /// * **Nothing is lost**: a message is deleted once it is acknowledged. Between the two it may come twice,
    ///   after a crash say, and has the same [header](crate::Transaction::publish) then.
    /// * **Order.** Messages of one topic and key are published one after the other. What comes a second time
    ///   may come behind what followed it; by the header that is told.
    /// * **One at a time.** Of all relays of a database one publishes; the others stand by, and one takes over
    ///   within a second or two when that one's connection ends; within half a minute when its machine vanishes
    ///   or its process stands still. So run one in each process. Each has a connection of its own, beside the others.
    /// * **What is refused** holds up those of its key: an event tells the topic and the id, once a minute, and
    ///   it is tried again after a back-off of 100 ms doubling to 30 s, for ever. A topic that has refused 16
    ///   in a row, or all that it was given so far, is tried by one message at a time, after such a back-off, until
    ///   it acknowledges one: a topic that is missing holds up no other. What can never be published is for
    ///   somebody to delete from `campanile.outbox`, by its id.
    /// * **How soon**: at once what was committed through this inbox and its clones, within a second what others
    ///   have written. 64 messages are published at a time, each of another key, so let a publication that
    ///   hangs end by a time-out.
    /// * **When Postgres is away** it waits, says so, and goes on.
    /// * Up to 500 messages, or some 4 MiB, are in memory. Each look at the table goes over what is held, and over
    ///   what was deleted as long as a transaction elsewhere in the database is older than that: a million
    ///   messages of either kind delay all others by about a second.
    /// * A publisher that panics ends the relay.
    ///
    /// # The end
    /// When `shutdown` has come nothing more is begun, and what is on its way may be acknowledged, within 5 s.
    ///
    /// # Where another way is better
    /// Change data capture, as by Debezium, reads the server's log: no row is deleted again, no key waits for a
    /// commit, and the order is that of all commits. Where it is there already, take it, with a table of your
    /// own. Where a handler's only effect is messages, take `serve_transactional` of `campanile-kafka`.
    ///
    /// # Cancellation
    /// A relay that is dropped has lost nothing; what was on its way comes again.
    pub fn relay<P, F>(
        &self,
        publisher: P,
        shutdown: F,
    ) -> impl Future<Output = ()> + Send + use<P, F>
    where
        P: Service<Output> + Clone + Send + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()> + Send,
    {
        let relay = Relay { config: self.config().clone(), written: self.written().clone() };
        async move { relay.run(publisher, pin!(shutdown.fuse())).await }
    }
}

struct Relay {
    config: PgConfig,
    /// Told of each commit of this process that has written a message.
    written: Arc<Notify>,
}

impl Relay {
    async fn run<P, F>(self, publisher: P, mut shutdown: Pin<&mut Fuse<F>>)
    where
        P: Service<Output> + Clone + Send + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()>,
    {
        let (mut told, mut work) = (Seldom::default(), Work::new(publisher));
        loop {
            let error = match select(shutdown.as_mut(), pin!(self.lead())).await {
                Either::Left(_) => return,
                Either::Right((Ok(session), _)) => {
                    work.start_anew();
                    match self.publish(&mut work, &session, shutdown.as_mut()).await {
                        Ok(()) => return,
                        // To be told once, and never again.
                        Err(_) if shutdown.is_terminated() => return,
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
        tracing::info!("this process publishes what is in the outbox");
        Ok(session)
    }

    /// Publishes until the session breaks, or until it is to end.
    async fn publish<P, F>(
        &self,
        work: &mut Work<P>,
        session: &Session,
        mut shutdown: Pin<&mut Fuse<F>>,
    ) -> Result<(), BoxError>
    where
        P: Service<Output> + Clone + Send + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()>,
    {
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
                    work.take(messages, &asked, Instant::now());
                }
                ended = work.ended() => work.settle(ended, Instant::now()),
                () = written => work.look(),
                () = pause => if end.is_some_and(|end| end <= Instant::now()) {
                    return Ok(());
                },
            }
        }
    }
}
