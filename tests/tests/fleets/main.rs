//! A rolling upgrade of whole consumers on a real Kafka: processes of release 0.1 and present ones work
//! on the same keys, with duplicates, failures and kills. No record is lost, and no entry is unreadable
//! for either of them.
//!
//! Each storm prints one line. `CAMPANILE_FLEET_RECORDS` makes it longer, and `CAMPANILE_STORM_SEED`
//! repeats the choices of an earlier run.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/entries.rs"]
mod entries;
mod fleet;
#[path = "../support/group.rs"]
mod group;
#[path = "../support/history.rs"]
mod history;
#[path = "../support/length.rs"]
mod length;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::sync::LazyLock;

use campanile::postgres::migrate;
use campanile_test::{KafkaServer, PgServer, RedisServer};
use campanile_tests::SCHEMA_0_1;

use fleet::{Fleet, Release};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// Upgrades and rollbacks take turns, so that half of the processes are always of each release.
#[test]
fn mixed_fleet_on_redis_loses_no_record_and_no_entry() {
    use Release::{Present, V0_1};
    let redis = RedisServer::start().unwrap();
    let mut fleet = Fleet::start("fleet on Redis", redis.url(), [V0_1, Present, V0_1, Present]);
    for step in 0..fleet.steps() {
        let (from, to) = if step % 2 == 0 { (V0_1, Present) } else { (Present, V0_1) };
        fleet.replace(from, to);
    }
    fleet.finish();
}

/// The processes of 0.1 are connected when the schema is migrated. They are not restarted afterwards,
/// because another version of the schema refuses them, but replaced: two at once, and the others at
/// the end.
#[test]
fn mixed_fleet_on_postgres_loses_no_record_and_no_entry() {
    use Release::{Present, V0_1};
    let postgres = PgServer::start().unwrap();
    postgres.psql(SCHEMA_0_1).unwrap();
    let mut fleet = Fleet::start("fleet on Postgres", postgres.url(), [V0_1; 4]);
    fleet.produce_part();
    fleet.block_on(migrate(postgres.url())).unwrap();
    let steps = fleet.steps();
    for step in 0..steps {
        let from = if step < 2 || step + 2 >= steps { V0_1 } else { Present };
        fleet.replace(from, Present);
    }
    fleet.finish();
}
