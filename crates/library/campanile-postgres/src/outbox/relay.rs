//! The relay, which publishes the messages committed to the outbox.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Output};
use futures_util::future::{Either, Fuse, FusedFuture, FutureExt, select};
use futures_util::select_biased;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use super::dispatcher::Dispatcher;
use super::metrics::{Leading, OutboxMetrics};
use super::session::Session;
use crate::Inbox;
use crate::log_limit::LogLimit;
use crate::pool::Pool;

/// The pause between two reads of the table for messages of other processes, and between two
/// attempts to lead.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which the messages in the table are counted, for metrics.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(10);

/// The time limit for acknowledgments of in-flight messages at a shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Inbox {
    /// Publishes the messages that handlers have [written](crate::Transaction::publish) to the
    /// outbox, until `shutdown` completes: each message **at least once, and the messages of one
    /// topic and key in their order**. `publisher` is any service that returns `Ok` once a message
    /// is safe, such as the `Publisher` of `campanile-kafka`.
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
    /// // stands in for the brokers
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
    /// inbox.runner("payments")?.run("payment-1", bill).await?;
    ///
    /// let message = messages.recv().await.ok_or("the relay has stopped")?;
    /// assert_eq!(message.key.as_deref(), Some(&b"a-17"[..]));
    /// assert_eq!(message.headers[0].0, "idempotency-key");
    /// drop(stop);
    /// relay.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Guarantees
    /// * **Nothing is lost**: a message is deleted after it is acknowledged. A crash between the
    ///   two publishes it twice, with the same [header](crate::Transaction::publish).
    /// * **Order**: the messages of one topic and key are published one after the other. A message
    ///   that is published again may come after its successors; its header identifies it.
    /// * **One relay at a time**: of all relays of a database, one publishes and the others stand
    ///   by. When the leader's connection ends, another takes over within a second or two; when its
    ///   machine vanishes or its process hangs, within half a minute. So run one relay in each
    ///   process. Each relay has its own connection, in addition to the others.
    /// * **Refused messages** hold up the messages of their key. The relay logs a topic and id at
    ///   most once a minute, and retries the message with a backoff of 100 ms doubling to 30 s,
    ///   forever. A topic that refuses 16 messages in a row, or has refused every message so far,
    ///   gets only one message at a time, after such a backoff, until it acknowledges one. A
    ///   missing topic therefore does not hold up the others. A message that can never be published
    ///   must be deleted from `campanile.outbox` by its id.
    /// * **Latency**: messages committed through this inbox and its clones are published at once,
    ///   those of other processes within a second. Up to 64 messages are published concurrently,
    ///   each with a different key, so limit a publication that may hang with a timeout.
    /// * **If Postgres is unavailable**, the relay logs a warning, waits and continues.
    /// * **Memory and table size**: the relay keeps up to 500 messages, or some 4 MiB, in memory.
    ///   Each read of the table scans the messages that are held up, and deleted rows for as long
    ///   as the database has a transaction older than their deletion. A million messages of either
    ///   kind delay all others by about a second.
    /// * A publisher that panics ends the relay.
    ///
    /// # Shutdown
    /// Once `shutdown` completes, the relay publishes no further message. Messages in flight have
    /// 5 s to be acknowledged.
    ///
    /// # Alternatives
    /// Change data capture, such as Debezium, reads the server's log: no row has to be deleted, no
    /// key waits for a commit, and the order is that of all commits. If you already have it, use it
    /// with your own table. If a handler has no effects but messages, use `serve_transactional` of
    /// `campanile-kafka`.
    ///
    /// # Cancellation
    /// Dropping the relay loses nothing; messages in flight are published again.
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
        let pool = self.config().relay_pool().expect("`connect` made a pool of the same settings");
        let relay = Relay { pool, outbox_written: self.outbox_written().clone() };
        async move { relay.run(publisher, pin!(shutdown.fuse())).await }
    }
}

struct Relay {
    /// Also counts the sessions that the relay has abandoned.
    pool: Pool,
    /// Notified of each commit of this process that has written a message.
    outbox_written: Arc<Notify>,
}

impl Relay {
    async fn run<P, F>(self, publisher: P, mut shutdown: Pin<&mut Fuse<F>>)
    where
        P: Service<Output> + Clone + Send + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()>,
    {
        let (mut log_limit, mut dispatcher) = (LogLimit::default(), Dispatcher::new(publisher));
        let metrics = OutboxMetrics::new();
        loop {
            let error = match select(shutdown.as_mut(), pin!(self.acquire_leadership())).await {
                Either::Left(_) => return,
                Either::Right((Ok(session), _)) => {
                    dispatcher.reset();
                    let metrics = metrics.lead();
                    match self.publish(&mut dispatcher, &session, metrics, shutdown.as_mut()).await
                    {
                        Ok(()) => return,
                        // `shutdown` completes only once, so another round would never end.
                        Err(_) if shutdown.is_terminated() => return,
                        Err(error) => error,
                    }
                }
                Either::Right((Err(error), _)) => error,
            };
            if log_limit.allow(Instant::now()) {
                let error = &*error as &dyn std::error::Error;
                tracing::warn!(error, "relay cannot reach the outbox; retrying");
            }
            if let Either::Left(_) = select(shutdown.as_mut(), pin!(sleep(POLL_INTERVAL))).await {
                return;
            }
        }
    }

    /// Waits until this relay leads.
    async fn acquire_leadership(&self) -> Result<Session, BoxError> {
        let session = Session::open(&self.pool).await?;
        while !session.try_lead().await? {
            sleep(POLL_INTERVAL).await;
        }
        tracing::info!("relay is now the leader; publishing the outbox");
        Ok(session)
    }

    /// Publishes until the session breaks or the shutdown is complete.
    async fn publish<P, F>(
        &self,
        dispatcher: &mut Dispatcher<P>,
        session: &Session,
        metrics: Leading<'_>,
        mut shutdown: Pin<&mut Fuse<F>>,
    ) -> Result<(), BoxError>
    where
        P: Service<Output> + Clone + Send + 'static,
        P::Error: BoxableError,
        P::Future: Send,
        F: Future<Output = ()>,
    {
        let mut exchange = pin!(Fuse::terminated());
        let mut backlog = pin!(Fuse::terminated());
        let mut backlog_due = Instant::now();
        let mut drain_deadline = None;
        loop {
            let now = Instant::now();
            dispatcher.start_publishing();
            if exchange.is_terminated() {
                match dispatcher.next_request(now) {
                    Some(request) => exchange.set(session.exchange(request).fuse()),
                    None if drain_deadline.is_some() && dispatcher.is_idle() => return Ok(()),
                    None => {}
                }
            }
            if backlog.is_terminated() && now >= backlog_due {
                backlog.set(session.backlog().fuse());
                backlog_due = now + BACKLOG_INTERVAL;
            }
            let wakeup = [Some(now + POLL_INTERVAL), dispatcher.next_wakeup(now), drain_deadline]
                .into_iter()
                .flatten()
                .min();
            let mut pause = pin!(sleep_until(wakeup.expect("the pause is always set")).fuse());
            let mut written = pin!(self.outbox_written.notified().fuse());
            select_biased! {
                () = shutdown => {
                    dispatcher.shut_down();
                    drain_deadline = Some(now + DRAIN_TIMEOUT);
                }
                response = exchange => {
                    let (request, messages) = response?;
                    dispatcher.accept(messages, &request, Instant::now());
                }
                counted = backlog => metrics.set(counted?),
                result = dispatcher.next_result() => dispatcher.handle_result(result, Instant::now()),
                () = written => dispatcher.mark_has_more(),
                () = pause => if drain_deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    return Ok(());
                },
            }
        }
    }
}
