//! An inbox with handlers that publish, and its relay.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Output, Record, Request, key};
use campanile_idempotency::{Backoff, IdempotencyConfig, IdempotencyLayer};
use campanile_postgres::{Inbox, Transaction};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::brokers::Brokers;
use crate::support::{Database, EVENT_TIMEOUT};

pub(crate) struct Fixture {
    pub(crate) database: Database,
    pub(crate) inbox: Inbox,
    pub(crate) brokers: Brokers,
}

/// A running relay.
pub(crate) struct Relay {
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let database = Database::new().await;
        let inbox = Inbox::new(&database.store().await).unwrap();
        Self { database, inbox, brokers: Brokers::default() }
    }

    /// Creates a layer that reads keys from the header `id` and allows failed attempts to be
    /// retried at once.
    pub(crate) fn idempotency_layer(&self) -> IdempotencyLayer<key::Key<key::Header>> {
        let at_once = Backoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
        let config = IdempotencyConfig::new("bills").with_backoff(at_once);
        IdempotencyLayer::new(self.inbox.keeper(), config, key::header("id")).unwrap()
    }

    /// Runs a handler once for this key.
    pub(crate) async fn run<H>(&self, handler: H, id: &str) -> Result<Outcome<()>, BoxError>
    where
        H: Service<Request<()>, Response = (), Error = BoxError> + Clone + Send + 'static,
        H::Future: Send,
    {
        let record = Record::builder("payments", 0, 7).header("id", id.to_owned()).build();
        self.inbox
            .layer(self.idempotency_layer())
            .unwrap()
            .layer(handler)
            .oneshot(Request::new(record, ()))
            .await
    }

    /// Runs a handler that publishes these messages.
    pub(crate) async fn publish(&self, id: &str, outputs: impl IntoIterator<Item = Output>) {
        let outputs: Vec<_> = outputs.into_iter().collect();
        let handler = service_fn(move |request: Request<()>| {
            let outputs = outputs.clone();
            async move { publish(&request, outputs).await }
        });
        assert_eq!(self.run(handler, id).await.unwrap(), Outcome::Processed(()));
    }

    /// Starts a relay.
    pub(crate) fn relay(&self) -> Relay {
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { drop(stopped.await) };
        let running = tokio::spawn(self.inbox.relay(self.brokers.clone(), shutdown));
        Relay { stop, running }
    }

    /// Terminates the session of the relay that leads.
    pub(crate) fn terminate_leader(&self) {
        let ended = self.database.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        );
        assert_eq!(ended, "t", "not exactly one relay leads");
    }

    /// Counts the messages in the table.
    pub(crate) fn count_messages(&self) -> usize {
        self.database.psql("SELECT count(*) FROM campanile.outbox").parse().unwrap()
    }

    pub(crate) async fn wait_until_empty(&self) {
        self.database.wait_for("SELECT count(*) = 0 FROM campanile.outbox").await;
    }
}

impl Relay {
    /// Shuts the relay down gracefully.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        timeout(EVENT_TIMEOUT, self.running).await.unwrap().unwrap();
    }

    /// Drops the relay, as a crash would, but also closes its connection.
    pub(crate) async fn crash(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
    }
}

pub(crate) async fn publish(request: &Request<()>, outputs: Vec<Output>) -> Result<(), BoxError> {
    let transaction = Transaction::from_request(request)?;
    for output in outputs {
        transaction.publish(output).await?;
    }
    Ok(())
}

/// Creates a message of this key.
pub(crate) fn bill(key: &str, payload: impl ToString) -> Output {
    Output::to("bills").key(key.to_owned()).payload(payload.to_string())
}

/// Finds the header that identifies a message.
pub(crate) fn id_headers(output: &Output) -> Vec<String> {
    let headers = output.headers.iter().filter(|(name, _)| name == "idempotency-key");
    headers.map(|(_, value)| crate::brokers::text(value)).collect()
}
