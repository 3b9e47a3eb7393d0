//! Whole consumers on a real Kafka while their Redis is flushed, hung, killed, failed over, moved and
//! cut off: nothing is lost, no attempt is counted, and a key runs twice only for a cause that is told.
//!
//! Each storm prints one line. `CAMPANILE_STORM_RECORDS` asks for more records, and
//! `CAMPANILE_STORM_ROUNDS` for more than one round of each; `CAMPANILE_STORM_SEED` for the records of
//! one again. `CAMPANILE_STORM_BACKLOG_MIB` is for the test of memory.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod cluster;
mod flush;
#[path = "../support/group.rs"]
mod group;
mod hang;
#[path = "../support/ledger.rs"]
mod ledger;
mod memory;
mod network;
#[path = "../support/resident.rs"]
mod resident;
mod restart;
mod sentinel;
#[path = "../support/serving.rs"]
mod serving;
#[path = "../support/store.rs"]
mod store;
mod storm;
mod verdict;
#[path = "../support/worker.rs"]
mod worker;

use std::sync::LazyLock;
use std::time::Duration;

use campanile_test::KafkaServer;

/// Shared: it takes some seconds to start. A `static` is never dropped; its process ends with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// What a lock's time to live is, and Redis's time for an answer: a call may take no more than a sixth
/// of the first.
const LOCK_TTL: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_millis(500);

/// In a normal run.
const RECORDS: u64 = 3_000;
const ROUNDS: u64 = 1;

/// A number in the environment, for longer runs.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Runs a scene as often as the environment asks for, with a seed for each.
fn rounds(scene: impl Fn(u64)) {
    for _ in 0..setting("CAMPANILE_STORM_ROUNDS").unwrap_or(ROUNDS) {
        scene(setting("CAMPANILE_STORM_SEED").unwrap_or_else(|| fastrand::u64(..)));
    }
}
