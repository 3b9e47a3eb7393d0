//! A ledger in Postgres, and requests that book in it.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Record, Request, key};
use campanile_idempotency::{Backoff, IdempotencyLayer};
use campanile_postgres::{Inbox, InboxLayer, Transaction};
use tower::{Layer, Service, ServiceExt};

use crate::support::Database;

type Key = key::Key<key::Header>;

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) inbox: Inbox,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = Database::new().await;
        database.psql("CREATE TABLE ledger (key text, cents bigint NOT NULL, UNIQUE (key, cents))");
        let inbox = Inbox::new(&database.store().await).unwrap();
        Self { database, inbox }
    }

    /// Keys are in the header `id`; what failed may be tried again at once.
    pub(crate) fn guarded(&self) -> IdempotencyLayer<Key> {
        let layer =
            IdempotencyLayer::new(self.inbox.keeper(), "ledger", key::header("id")).unwrap();
        let at_once = Backoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
        layer.with_backoff(at_once)
    }

    pub(crate) fn layer(&self) -> InboxLayer<Key> {
        self.inbox.layer(self.guarded()).unwrap()
    }

    /// Runs a handler once, for this key.
    pub(crate) async fn run<H>(
        &self,
        handler: H,
        id: &str,
    ) -> Result<Outcome<H::Response>, BoxError>
    where
        H: Service<Request<()>, Error = BoxError> + Clone + Send + 'static,
        H::Response: Send + 'static,
        H::Future: Send,
    {
        self.layer().layer(handler).oneshot(request(id)).await
    }

    /// What was booked for this key: how many rows, and their sum.
    pub(crate) fn booked(&self, id: &str) -> String {
        let sql =
            format!("SELECT count(*), coalesce(sum(cents), 0) FROM ledger WHERE key = '{id}'");
        self.database.psql(&sql)
    }

    /// The state and the attempts of the one entry.
    pub(crate) fn entry(&self) -> String {
        self.database.psql("SELECT state, attempt FROM campanile.entry")
    }

    /// Sessions of this database in which a transaction is open.
    pub(crate) fn open_transactions(&self) -> String {
        self.database.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND pid <> pg_backend_pid() AND xact_start IS NOT NULL \
             AND backend_type = 'client backend'",
        )
    }
}

pub(crate) fn request(id: &str) -> Request<()> {
    Request::new(Record::builder("bookings", 0, 7).header("id", id.to_owned()).build(), ())
}

/// Books a hundred cents.
pub(crate) async fn book(request: Request<()>) -> Result<(), BoxError> {
    let id = request.lock().unwrap().key().to_string();
    Transaction::of(&request)?.execute("INSERT INTO ledger VALUES ($1, 100)", &[&id]).await?;
    Ok(())
}
