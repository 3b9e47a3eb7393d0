//! Whether throughput stays constant with many entries, while expired entries are deleted.

use std::time::Duration;

use campanile::postgres::migrate;
use campanile::{BoxError, IdempotencyLayer, PgConfig, PgStore};

use super::{Environment, ROUNDS};
use crate::handlers::{key, process, with_layer};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 50_000;
/// Number of warm-up messages after each connect, which do not count.
const WARM_UP_MESSAGES: u64 = 2_000;

/// Number of entries, a tenth of which have expired, and number of entries per insert.
const ENTRIES: u64 = 10_000_000;
const ENTRIES_PER_INSERT: u64 = 1_000_000;

/// Number of expired entries added in each round. They take the place of swept entries, at the
/// start of the table, where sweeping begins.
const EXPIRED_PER_ROUND: u64 = 200_000;
const COUNT_EXPIRED: &str = "SELECT count(*) FROM campanile.entry \
    WHERE ctid < '(10000,0)' AND expires_at < now() - interval '1 minute'";

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let (empty, full) = (env.postgres.new_database()?, env.postgres.new_database()?);
    for url in [&empty, &full] {
        env.runtime.block_on(migrate(url.as_str()))?;
    }
    let in_full =
        |sql: &str| env.postgres.psql_in(full.rsplit('/').next().unwrap_or_default(), sql);
    for first in (0..ENTRIES).step_by(ENTRIES_PER_INSERT as usize) {
        in_full(&fill_sql(first, ENTRIES_PER_INSERT, 10))?;
    }
    let plain = PgConfig::new(&empty).without_sweeping();
    // Sweeps continuously, at the pace of a normal sweep.
    let sweeping = PgConfig::new(&full)
        .with_sweep_interval(Duration::from_millis(1))
        .with_command_timeout(Duration::from_secs(10));

    let (mut alone, mut with_sweeping) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let empty_rate = per_second(env, &plain, round)?;
        in_full("VACUUM campanile.entry")?;
        in_full(&fill_sql(ENTRIES + round * EXPIRED_PER_ROUND, EXPIRED_PER_ROUND, 1))?;
        let count_expired = || Ok::<_, BoxError>(in_full(COUNT_EXPIRED)?.parse::<u64>()?);
        let before = count_expired()?;
        let sweeping_rate = per_second(env, &sweeping, round)?;
        if count_expired()? >= before {
            return Err("nothing was deleted meanwhile".into());
        }
        if round > 0 {
            alone.push(empty_rate);
            with_sweeping.push(sweeping_rate);
        }
    }
    report.add(Row {
        area: "postgres",
        name: "the same with 10 M entries, while it sweeps",
        unit: "messages/s",
        values: with_sweeping,
        reference: Some(("in an empty table", alone)),
        goal: Some(Goal::AtLeast(0.9)),
    });
    Ok(())
}

/// Measures with a store that is dropped at the end, including its background work.
fn per_second(env: &Environment, config: &PgConfig, round: u64) -> Result<f64, BoxError> {
    let store = env.runtime.block_on(PgStore::connect(config.clone()))?;
    let layer = IdempotencyLayer::new(store, "bench", key)?;
    let first = round * (WARM_UP_MESSAGES + MESSAGES);
    let numbers = first + WARM_UP_MESSAGES..first + WARM_UP_MESSAGES + MESSAGES;
    env.runtime.block_on(process(with_layer(&layer), first..first + WARM_UP_MESSAGES, 256))?;
    let took = env.runtime.block_on(process(with_layer(&layer), numbers, 256))?;
    Ok(MESSAGES as f64 / took.as_secs_f64())
}

/// Formats SQL that inserts `count` entries, starting at this number. One entry in
/// `expired_every` expired an hour ago.
fn fill_sql(first: u64, count: u64, expired_every: u64) -> String {
    format!(
        "INSERT INTO campanile.entry (namespace, key, state, attempt, token, owner, created, at, \
         expires_at) SELECT 'many', decode(md5(i::text), 'hex'), 'C', 1, 5, 7, now(), now(), now() + \
         CASE WHEN i % {expired_every} = 0 THEN interval '-1 hour' ELSE interval '7 d' END \
         FROM generate_series({first}, {first} + {count} - 1) i"
    )
}
