//! A ledger in Postgres, and requests that write to it.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Record, Request, key};
use campanile_idempotency::{Backoff, IdempotencyConfig, IdempotencyError, IdempotencyLayer};
use campanile_postgres::{Inbox, InboxLayer, PgConfig, PgStore, Transaction};
use tower::{Layer, Service, ServiceExt};

use crate::support::{self, Database, EVENT_TIMEOUT};

type Key = key::Key<key::Header>;

pub(crate) struct Fixture {
    pub(crate) database: Database,
    pub(crate) inbox: Inbox,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with_config(|config| config).await
    }

    pub(crate) async fn with_config(settings: impl FnOnce(PgConfig) -> PgConfig) -> Self {
        let database = Database::new().await;
        database.psql("CREATE TABLE ledger (key text NOT NULL, cents bigint NOT NULL)");
        let store = PgStore::connect(settings(database.config())).await.unwrap();
        let inbox = Inbox::new(&store).unwrap();
        Self { database, inbox }
    }

    /// Connects as a role to which the server provides the store's connection and no other, until
    /// [`limit_connections`](Self::limit_connections) allows more.
    pub(crate) async fn without_inbox_connections(self) -> Self {
        self.database.psql(
            "CREATE ROLE app_of_few_connections LOGIN; \
             GRANT USAGE ON SCHEMA campanile TO app_of_few_connections; \
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app_of_few_connections; \
             GRANT ALL ON ledger TO app_of_few_connections",
        );
        let url = self.database.url().replace("//postgres@", "//app_of_few_connections@");
        let store = PgStore::connect(support::long_timeouts(&url)).await.unwrap();
        // The store takes the only connection, so there is none for the inbox.
        support::acquire_grant(&store, &support::key("other"), 1).await;
        self.limit_connections(1);
        self.with(|_| Inbox::new(&store).unwrap())
    }

    /// Limits the connections of that role; -1 is no limit.
    pub(crate) fn limit_connections(&self, limit: i32) {
        let sql = format!("ALTER ROLE app_of_few_connections CONNECTION LIMIT {limit}");
        self.database.psql(&sql);
    }

    /// Changes the settings of the inbox.
    pub(crate) fn with(self, settings: impl FnOnce(Inbox) -> Inbox) -> Self {
        Self { inbox: settings(self.inbox), ..self }
    }

    /// Creates a layer that reads keys from the header `id` and allows failed attempts to be
    /// retried at once.
    pub(crate) fn idempotency_layer(&self) -> IdempotencyLayer<Key> {
        self.idempotency_layer_with(|config| config)
    }

    pub(crate) fn idempotency_layer_with(
        &self,
        settings: impl FnOnce(IdempotencyConfig) -> IdempotencyConfig,
    ) -> IdempotencyLayer<Key> {
        let at_once = Backoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
        let config = settings(IdempotencyConfig::new("ledger").with_backoff(at_once));
        IdempotencyLayer::new(self.inbox.keeper(), config, key::header("id")).unwrap()
    }

    pub(crate) fn layer(&self) -> InboxLayer<Key> {
        self.inbox.layer(self.idempotency_layer()).unwrap()
    }

    /// Runs a handler once for this key.
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
        let run = || self.layer().layer(handler.clone()).oneshot(request(id));
        let ran = run().await;
        // The database may show that an earlier delivery has ended before this process reads its
        // answer.
        if let Err(error) = &ran
            && let Some(IdempotencyError::Locked { settled: Some(settled), .. }) =
                IdempotencyError::find(&**error)
        {
            settled.clone().wait_at_most(EVENT_TIMEOUT).await;
            return run().await;
        }
        ran
    }

    /// Counts the rows for this key and sums up their cents.
    pub(crate) fn booked(&self, id: &str) -> String {
        let sql =
            format!("SELECT count(*), coalesce(sum(cents), 0) FROM ledger WHERE key = '{id}'");
        self.database.psql(&sql)
    }

    /// Reads the states and attempts of all entries.
    pub(crate) fn entry(&self) -> String {
        self.database.psql("SELECT state, attempt FROM campanile.entry")
    }

    /// Waits until no session of this database has an open transaction.
    pub(crate) async fn assert_no_open_transaction(&self) {
        let none_is_open = "SELECT count(*) = 0 FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid() \
             AND xact_start IS NOT NULL AND backend_type = 'client backend'";
        self.database.wait_for(none_is_open).await;
    }
}

pub(crate) fn request(id: &str) -> Request<()> {
    Request::new(Record::builder("bookings", 0, 7).header("id", id.to_owned()).build(), ())
}

/// Books a hundred cents.
pub(crate) async fn book(request: Request<()>) -> Result<(), BoxError> {
    insert(&request).await
}

pub(crate) async fn insert(request: &Request<()>) -> Result<(), BoxError> {
    let id = request.lock().unwrap().key().to_string();
    Transaction::from_request(request)?
        .execute("INSERT INTO ledger VALUES ($1, 100)", &[&id])
        .await?;
    Ok(())
}
