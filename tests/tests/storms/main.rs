//! Complete consumers on a real Kafka while their Redis is flushed, suspended, killed, failed over,
//! migrated and disconnected: no record is lost, no attempt is counted, and a key runs twice only
//! for a stated cause.
//!
//! Each storm prints one line. `CAMPANILE_STORM_RECORDS` sets the number of records,
//! `CAMPANILE_STORM_ROUNDS` the number of rounds, and `CAMPANILE_STORM_SEED` repeats the records of
//! an earlier run. `CAMPANILE_STORM_BACKLOG_MIB` applies to the memory test.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod cluster;
mod flush;
#[path = "../support/group.rs"]
mod group;
mod hang;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/history.rs"]
mod history;
mod memory;
mod network;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
#[path = "../support/resident_memory.rs"]
mod resident_memory;
mod restart;
#[path = "../support/running_consumer.rs"]
mod running_consumer;
mod scenario;
mod sentinel;
#[path = "../support/store.rs"]
mod store;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::sync::LazyLock;
use std::time::Duration;

use campanile_test::KafkaServer;

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// The lock's time to live, and Redis's command timeout: a call may take at most a sixth of the
/// time to live. A busy machine hardly ever delays a renewal for so long.
const LOCK_TTL: Duration = Duration::from_secs(6);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

/// Defaults for a normal run.
const DEFAULT_RECORDS: u64 = 3_000;
const DEFAULT_ROUNDS: u64 = 1;

/// Reads a number from the environment, for longer runs.
fn env_u64(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs a scenario as often as the environment asks for, with a seed for each run.
fn repeat(run: impl Fn(u64)) {
    for _ in 0..env_u64("CAMPANILE_STORM_ROUNDS").unwrap_or(DEFAULT_ROUNDS) {
        run(env_u64("CAMPANILE_STORM_SEED").unwrap_or_else(|| fastrand::u64(..)));
    }
}
