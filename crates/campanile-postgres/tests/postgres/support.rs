//! What all tests here need.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use campanile_postgres::{PgConfig, PgStore, migrate};
use campanile_test::PgServer;

/// A database of the test's own, with the schema, on a server that tests share which run at the same
/// time.
pub(crate) struct Database {
    server: Arc<PgServer>,
    url: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let database = Self::empty();
        migrate(database.config()).await.unwrap();
        database
    }

    /// Without the schema.
    pub(crate) fn empty() -> Self {
        static SHARED: Mutex<Weak<PgServer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        let server = shared.upgrade().unwrap_or_else(|| {
            let settings = PgServer::builder().config("max_connections", "300");
            Arc::new(settings.start().unwrap())
        });
        *shared = Arc::downgrade(&server);
        drop(shared);
        let url = server.new_database().unwrap();
        Self { server, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn config(&self) -> PgConfig {
        patient(self.url())
    }

    pub(crate) async fn store(&self) -> PgStore {
        PgStore::connect(self.config()).await.unwrap()
    }

    /// Runs SQL behind the store's back, as the superuser.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql_in(self.name(), sql).unwrap()
    }

    pub(crate) fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }
}

/// For tests in which nothing times out, however busy the machine is.
pub(crate) fn patient(url: &str) -> PgConfig {
    let config = PgConfig::new(url).with_connect_timeout(Duration::from_secs(60)).unwrap();
    config.with_command_timeout(Duration::from_secs(60)).unwrap()
}
