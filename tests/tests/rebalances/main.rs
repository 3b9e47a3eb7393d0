//! Groups of consumer processes on a real Kafka and a real Redis while members join and leave, are
//! killed and are suspended: no record is lost, nothing unfinished is committed, finished records
//! do not run again, and records with the same record key keep their order.
//!
//! The judge of histories decides, from what each process, the test and the broker have recorded.
//! Each storm prints one line. `CAMPANILE_REBALANCE_RECORDS`, `_MEMBERS`, `_PAUSE_MS`,
//! `_KILLS`, `_STOPS`, `_OUTAGES`, `_SHUTDOWNS`, `_CLOSES` and `_BACKLOG_MIB` make the storms longer, and
//! `CAMPANILE_STORM_SEED` repeats the choices of an earlier run.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod broker;
mod closes;
mod graceful;
#[path = "../support/group.rs"]
mod group;
#[path = "../support/history.rs"]
mod history;
mod killed;
#[path = "../support/length.rs"]
mod length;
mod memory;
#[path = "../support/progress.rs"]
mod progress;
#[path = "../support/resident_memory.rs"]
mod resident_memory;
mod scenario;
mod shutdown;
#[path = "../support/store.rs"]
mod store;
mod suspended;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::sync::LazyLock;

use campanile_test::KafkaServer;

use length::env_or;

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| {
    // In the newer protocol, a heartbeat that is not answered within its interval times out.
    let builder = KafkaServer::builder().property("group.consumer.heartbeat.interval.ms", "1500");
    builder.start().unwrap()
});

/// Records produced per second in most storms.
const RECORDS_PER_SECOND: usize = 1_500;

fn record_count() -> usize {
    env_or("CAMPANILE_REBALANCE_RECORDS", 6_000) as usize
}

fn seed() -> u64 {
    env_or("CAMPANILE_STORM_SEED", fastrand::u64(..))
}
