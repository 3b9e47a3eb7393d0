//! The layer on a real Postgres, compared with pgbench: its speed, its storage size, and whether
//! both stay constant.

mod inbox;
mod limit;
mod many_entries;
mod size;
mod throughput;

use campanile::postgres::migrate;
use campanile::{BoxError, PgStore};
use campanile_test::PgServer;
use tokio::runtime::{Builder, Runtime};

use crate::report::Report;

/// Number of interleaved measurements of each comparison.
const ROUNDS: u64 = 5;

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let settings = PgServer::builder()
        .config("shared_buffers", "256MB")
        .config("max_wal_size", "4GB")
        .config("max_connections", "300");
    let env = Environment {
        postgres: settings.start()?,
        runtime: Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
    };
    env.runtime.block_on(migrate(env.postgres.url()))?;
    throughput::run(report, &env)?;
    inbox::run(report, &env)?;
    size::run(report, &env)?;
    many_entries::run(report, &env)
}

/// A server that does not wait for its disk, which would hide the cost of the statements, and a
/// single-threaded runtime.
struct Environment {
    postgres: PgServer,
    runtime: Runtime,
}

impl Environment {
    fn store(&self, url: &str) -> Result<PgStore, BoxError> {
        Ok(self.runtime.block_on(PgStore::connect(url))?)
    }

    /// Reads the number selected by a query.
    fn number(&self, sql: &str) -> Result<f64, BoxError> {
        Ok(self.postgres.psql(sql)?.parse()?)
    }
}
