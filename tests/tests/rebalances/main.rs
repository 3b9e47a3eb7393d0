//! Groups of consumer processes on a real Kafka and a real Redis while members come and go, are killed
//! and stand still: nothing is lost, nothing unfinished is committed, what is finished does not run
//! again, and records with the same record key keep their order.
//!
//! What holds is read from histories: what each process wrote down of each run, and what the broker
//! wrote down of each commit. Each storm prints one line. `CAMPANILE_REBALANCE_RECORDS`, `_MEMBERS`,
//! `_PAUSE_MS`, `_KILLS`, `_STOPS`, `_OUTAGES`, `_SHUTDOWNS` and `_BACKLOG_MIB` make them longer, and
//! `CAMPANILE_STORM_SEED` repeats the choices of one.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod broker;
mod commits;
mod graceful;
#[path = "../support/group.rs"]
mod group;
mod history;
mod killed;
mod memory;
#[path = "../support/resident.rs"]
mod resident;
mod scene;
mod shutdown;
mod stopped;
#[path = "../support/store.rs"]
mod store;
mod verdict;
#[path = "../support/worker.rs"]
mod worker;

use std::sync::LazyLock;

use campanile::Clock;
use campanile_test::KafkaServer;

/// Shared: it takes some seconds to start. A `static` is never dropped; its process ends with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// How many records come in a second, mostly.
const RATE: usize = 1_500;

/// A number in the environment, for longer runs.
fn setting(name: &str, usual: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}"))
}

fn records() -> usize {
    setting("CAMPANILE_REBALANCE_RECORDS", 6_000) as usize
}

fn seed() -> u64 {
    setting("CAMPANILE_STORM_SEED", fastrand::u64(..))
}

/// In microseconds since boot.
fn now() -> u64 {
    Clock::boot().now().as_micros() as u64
}
