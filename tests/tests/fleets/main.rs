//! A rolling upgrade of whole consumers on a real Kafka: processes of before details existed and
//! present ones work on the same keys, with duplicates, failures and kills. No record is lost, and
//! no entry is unreadable for either of them.
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

use fleet::{Fleet, Release};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// Upgrades and rollbacks take turns, so that half of the processes are always of each release.
#[test]
fn mixed_fleet_on_redis_loses_no_record_and_no_entry() {
    use Release::{Before, Present};
    let redis = RedisServer::start().unwrap();
    let mut fleet = Fleet::start("fleet on Redis", redis.url(), [Before, Present, Before, Present]);
    for step in 0..fleet.steps() {
        let (from, to) = if step % 2 == 0 { (Before, Present) } else { (Present, Before) };
        fleet.replace(from, to);
    }
    fleet.finish();
}

/// The processes of before are connected when the schema is migrated. They cannot be restarted
/// afterwards, so they are replaced: two at once, and the others at the end.
#[test]
fn mixed_fleet_on_postgres_loses_no_record_and_no_entry() {
    use Release::{Before, Present};
    let postgres = PgServer::start().unwrap();
    let psql = |text: &str| postgres.psql(text).unwrap();
    campanile_sql::MIGRATIONS.iter().take(3).for_each(|(_, text)| drop(psql(text)));
    let mut fleet = Fleet::start("fleet on Postgres", postgres.url(), [Before; 4]);
    fleet.produce_part();
    fleet.block_on(migrate(postgres.url())).unwrap();
    let steps = fleet.steps();
    for step in 0..steps {
        let from = if step < 2 || step + 2 >= steps { Before } else { Present };
        fleet.replace(from, Present);
    }
    fleet.finish();
}
