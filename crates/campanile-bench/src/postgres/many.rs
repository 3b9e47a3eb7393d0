//! Whether it stays so with many entries, while those that are over are deleted.

use campanile::postgres::migrate;
use campanile::{BoxError, IdempotencyLayer, PgStore};

use super::{ROUNDS, Stage};
use crate::guarded::{guarded, key, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 50_000;

/// How many entries there are; of ten, one is over.
const MANY: u64 = 2_000_000;

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let (empty, full) = (stage.postgres.new_database()?, stage.postgres.new_database()?);
    for url in [&empty, &full] {
        stage.runtime.block_on(migrate(url.as_str()))?;
    }
    let in_full =
        |sql: &str| stage.postgres.psql_in(full.rsplit('/').next().unwrap_or_default(), sql);
    in_full(&fill(1, MANY))?;
    in_full("VACUUM ANALYZE campanile.entry")?;
    let (empty, full) = (stage.store(&empty)?, stage.store(&full)?);
    let layer = |store: &PgStore| IdempotencyLayer::new(store.clone(), "bench", key);
    let (plain, swept) = (layer(&empty)?, layer(&full)?);

    let (mut alone, mut beside, mut deleted) = (vec![], vec![], 0);
    for round in 0..=ROUNDS {
        let numbers = round * MESSAGES..(round + 1) * MESSAGES;
        let took = stage.runtime.block_on(process(guarded(&plain), numbers.clone(), 256))?;
        // What is to be deleted while the next is measured.
        in_full(&fill(MANY + round * (MANY / 10), MANY / 10))?;
        let measured = process(guarded(&swept), numbers, 256);
        let sweeping = async {
            loop {
                match full.sweep().await {
                    Ok(swept) => deleted += swept,
                    Err(error) => return error,
                }
            }
        };
        let took_beside = stage.runtime.block_on(async {
            tokio::select! {
                took = measured => took,
                error = sweeping => Err(error.into()),
            }
        })?;
        if round > 0 {
            alone.push(MESSAGES as f64 / took.as_secs_f64());
            beside.push(MESSAGES as f64 / took_beside.as_secs_f64());
        }
    }
    if deleted == 0 {
        return Err("nothing was deleted meanwhile".into());
    }
    report.add(Row {
        area: "postgres",
        name: "the same with 2 M entries, while it sweeps",
        unit: "messages/s",
        values: beside,
        against: Some(("in an empty table", alone)),
        goal: Some(Goal::AtLeast(0.9)),
    });
    Ok(())
}

/// So many more entries from this number on, of which each tenth has been over for an hour.
fn fill(first: u64, count: u64) -> String {
    format!(
        "INSERT INTO campanile.entry (namespace, key, state, attempt, token, owner, created, at, \
         expires_at) SELECT 'many', decode(md5(i::text), 'hex'), 'C', 1, 5, 7, now(), now(), now() + \
         CASE WHEN i % 10 = 0 THEN interval '-1 hour' ELSE interval '7 d' END \
         FROM generate_series({first}, {first} + {count} - 1) i ON CONFLICT DO NOTHING"
    )
}
