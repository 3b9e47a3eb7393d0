//! Tests of Campanile across its crates, on real servers; see `tests/`. The library itself compiles
//! the code blocks of the documents, and connects stores as processes of release 0.1 do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use campanile::health::Unhealthy;
use campanile::{BoxError, Handle, PgStore, RedisStore};
use campanile_admin::{AnyStore, StoreConfig};

#[path = "../../crates/library/campanile-postgres/tests/postgres/differential/v0_1/mod.rs"]
mod postgres_v0_1;
#[path = "../../crates/library/campanile-redis/tests/redis/differential/v0_1/mod.rs"]
mod redis_v0_1;

/// How long servers may take to come up for a program: a test may have stopped them.
pub const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The schema of Postgres in release 0.1.
pub const SCHEMA_0_1: &str = postgres_v0_1::SCHEMA_SQL;

/// Connects to a store as a process of release 0.1: sends its scripts to Redis, and its statements to
/// Postgres.
///
/// # Errors
/// Those of the store.
pub async fn connect_0_1(config: StoreConfig) -> Result<AnyStore, BoxError> {
    // Boxed, because the futures are nested deeply.
    Ok(match config {
        StoreConfig::Redis(config) => {
            let scripts = &redis_v0_1::SCRIPTS;
            AnyStore::Redis(Box::pin(RedisStore::connect_with_scripts(config, scripts)).await?)
        }
        StoreConfig::Postgres(config) => {
            let schema = postgres_v0_1::SCHEMA;
            AnyStore::Postgres(Box::pin(PgStore::connect_with_schema(config, schema)).await?)
        }
        other => return Err(format!("no process of 0.1 is known for {other:?}").into()),
    })
}

/// Writes events at WARN and ERROR to standard error.
pub fn log_events() {
    let level = tracing_subscriber::filter::LevelFilter::WARN;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
}

/// The file that says that a process is not live. Its test kills the process then, as Kubernetes would.
pub fn not_live_file(folder: &Path, process: &str) -> PathBuf {
    folder.join(format!("{process}.not-live"))
}

/// Probes the liveness of a consumer every second, and writes a file once it is not live.
pub fn probe_liveness(handle: Handle, folder: &str, process: &str) {
    let file = not_live_file(Path::new(folder), process);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            match handle.health().live {
                Ok(()) => {}
                Err(Unhealthy::Ended) => return,
                Err(reason) => {
                    eprintln!("not live: {reason}");
                    std::fs::write(&file, reason.to_string()).expect("the folder can be written");
                }
            }
        }
    });
}

/// A document with code blocks that run as doctests.
macro_rules! document {
    ($name:ident, $path:literal) => {
        #[cfg(doctest)]
        #[doc = include_str!($path)]
        struct $name;
    };
}

document!(Readme, "../../README.md");
document!(Contributing, "../../CONTRIBUTING.md");
document!(Choosing, "../../docs/choosing.md");
document!(Evidence, "../../docs/evidence.md");
document!(Guarantees, "../../docs/guarantees.md");
document!(Kubernetes, "../../docs/kubernetes.md");
document!(Layers, "../../docs/layers.md");
document!(Migrating, "../../docs/migrating.md");
document!(Protocol, "../../docs/protocol.md");
document!(Troubleshooting, "../../docs/troubleshooting.md");
document!(Upgrading, "../../docs/upgrading.md");
