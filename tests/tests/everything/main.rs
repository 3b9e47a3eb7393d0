//! Everything at once, on real servers: groups of consumer processes with different stores, processing
//! orders, group protocols and ways to fail, side by side against one broker, while processes, stores,
//! the network and the broker fail at random. No record is lost, and a key runs twice only for a stated
//! cause.
//!
//! Each group prints the line of a storm, and the campaign a line with its faults.
//! `CAMPANILE_EVERYTHING_RECORDS` and `_FAULTS` set how many records and faults there are at least,
//! `_RATE` the records per second at most, and `CAMPANILE_STORM_SEED` repeats the choices of an earlier run.
//! `CAMPANILE_EVERYTHING_ONLY` restricts the faults to those of these names, separated by commas.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod broker;
mod campaign;
mod deleted;
#[path = "../support/entries.rs"]
mod entries;
mod events;
mod faults;
#[path = "../support/group.rs"]
mod group;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/history.rs"]
mod history;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/invoices.rs"]
mod invoices;
#[path = "../support/length.rs"]
mod length;
mod letters;
mod load;
mod operator;
mod overload;
mod processes;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
mod scenario;
#[path = "../../../crates/library/campanile-redis/tests/redis/server_clock.rs"]
mod server_clock;
mod stores;
mod topic;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::time::Duration;

/// Partitions of each topic of payments and of invoices.
const PARTITIONS: i32 = 16;

/// The most partitions of a topic to which some are added.
const MAX_PARTITIONS: i32 = 24;

/// Partitions of each topic of dead letters and copies, so few that each of them has some.
const LETTER_PARTITIONS: i32 = 4;

/// The lock's time to live in all consumers: a few seconds, so that faults outlast it, and a busy
/// machine does not.
const LOCK_TTL: Duration = Duration::from_secs(6);

/// The limit of each wait. A partition that librdkafka has stopped fetching continues after 40 s.
const TIMEOUT: Duration = Duration::from_secs(240);

#[test]
fn all_faults_at_once_lose_no_record_and_repeat_no_key_without_cause() {
    campaign::run();
}
