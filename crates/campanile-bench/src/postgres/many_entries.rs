//! Whether throughput stays constant with many entries, while expired entries are deleted.

use std::time::Duration;

use campanile::postgres::migrate;
use campanile::{BoxError, IdempotencyLayer, PgConfig, PgStore};

use super::{ROUNDS, Stage};
use crate::guarded::{guarded, key, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 50_000;
/// Number of warm-up messages after each connect, which do not count.
const WARMING: u64 = 2_000;

/// Number of entries, a tenth of which have expired, and number of entries per insert.
const MANY: u64 = 10_000_000;
const AT_A_TIME: u64 = 1_000_000;

/// Number of expired entries added in each round. They take the place of swept entries, at the
/// start of the table, where sweeping begins.
const OVER: u64 = 200_000;
const ARE_OVER: &str = "SELECT count(*) FROM campanile.entry \
    WHERE ctid < '(10000,0)' AND expires_at < now() - interval '1 minute'";

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let (empty, full) = (stage.postgres.new_database()?, stage.postgres.new_database()?);
    for url in [&empty, &full] {
        stage.runtime.block_on(migrate(url.as_str()))?;
    }
    let in_full =
        |sql: &str| stage.postgres.psql_in(full.rsplit('/').next().unwrap_or_default(), sql);
    for first in (0..MANY).step_by(AT_A_TIME as usize) {
        in_full(&fill(first, AT_A_TIME, 10))?;
    }
    let plain = PgConfig::new(&empty).without_sweeping();
    // Sweeps continuously, at the pace of a normal sweep.
    let sweeping = PgConfig::new(&full)
        .with_sweep_interval(Duration::from_millis(1))?
        .with_command_timeout(Duration::from_secs(10))?;

    let (mut alone, mut beside) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let of_alone = per_second(stage, &plain, round)?;
        in_full("VACUUM campanile.entry")?;
        in_full(&fill(MANY + round * OVER, OVER, 1))?;
        let are_over = || Ok::<_, BoxError>(in_full(ARE_OVER)?.parse::<u64>()?);
        let before = are_over()?;
        let of_beside = per_second(stage, &sweeping, round)?;
        if are_over()? >= before {
            return Err("nothing was deleted meanwhile".into());
        }
        if round > 0 {
            alone.push(of_alone);
            beside.push(of_beside);
        }
    }
    report.add(Row {
        area: "postgres",
        name: "the same with 10 M entries, while it sweeps",
        unit: "messages/s",
        values: beside,
        against: Some(("in an empty table", alone)),
        goal: Some(Goal::AtLeast(0.9)),
    });
    Ok(())
}

/// Measures with a store that is dropped at the end, including its background work.
fn per_second(stage: &Stage, config: &PgConfig, round: u64) -> Result<f64, BoxError> {
    let store = stage.runtime.block_on(PgStore::connect(config.clone()))?;
    let layer = IdempotencyLayer::new(store, "bench", key)?;
    let first = round * (WARMING + MESSAGES);
    let numbers = first + WARMING..first + WARMING + MESSAGES;
    stage.runtime.block_on(process(guarded(&layer), first..first + WARMING, 256))?;
    let took = stage.runtime.block_on(process(guarded(&layer), numbers, 256))?;
    Ok(MESSAGES as f64 / took.as_secs_f64())
}

/// Formats SQL that inserts `count` entries, starting at this number. One entry in `over` expired
/// an hour ago.
fn fill(first: u64, count: u64, over: u64) -> String {
    format!(
        "INSERT INTO campanile.entry (namespace, key, state, attempt, token, owner, created, at, \
         expires_at) SELECT 'many', decode(md5(i::text), 'hex'), 'C', 1, 5, 7, now(), now(), now() + \
         CASE WHEN i % {over} = 0 THEN interval '-1 hour' ELSE interval '7 d' END \
         FROM generate_series({first}, {first} + {count} - 1) i"
    )
}
