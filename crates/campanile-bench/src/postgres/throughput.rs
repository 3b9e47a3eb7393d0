//! Messages a second.

use campanile::{BoxError, IdempotencyLayer};

use super::{ROUNDS, Stage, limit};
use crate::guarded::{guarded, key, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 100_000;
const ONE_AT_A_TIME: u64 = 2_000;

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let store = stage.store(&stage.postgres.url())?;
    let layer = IdempotencyLayer::new(store, "bench", key)?;
    limit::prepare(stage)?;

    let (mut ours, mut batched, mut single) = (vec![], vec![], vec![]);
    let (mut alone, mut limit_alone) = (vec![], vec![]);
    // A round that is not counted warms the connections and the server's memory up.
    for round in 0..=ROUNDS {
        let first = round * (MESSAGES + ONE_AT_A_TIME);
        let last = first + MESSAGES;
        let took = stage.runtime.block_on(process(guarded(&layer), first..last, 256))?;
        let limit = limit::per_second(stage, 64, 4)?;
        let one_by_one = limit::per_second(stage, 1, 64)?;
        let numbers = last..last + ONE_AT_A_TIME;
        let took_alone = stage.runtime.block_on(process(guarded(&layer), numbers, 1))?;
        let one = limit::per_second(stage, 1, 1)?;
        stage.postgres.psql("VACUUM")?;
        if round > 0 {
            ours.push(MESSAGES as f64 / took.as_secs_f64());
            batched.push(limit);
            single.push(one_by_one);
            alone.push(ONE_AT_A_TIME as f64 / took_alone.as_secs_f64());
            limit_alone.push(one);
        }
    }

    let mut row = |name, values: &[f64], against, limit: &[f64], goal| {
        report.add(Row {
            area: "postgres",
            name,
            unit: "messages/s",
            values: values.to_vec(),
            against: Some((against, limit.to_vec())),
            goal,
        });
    };
    let name = "layer + PgStore, 256 at once";
    row(name, &ours, "pgbench, 64 in a statement", &batched, Some(Goal::AtLeast(0.8)));
    row(name, &ours, "pgbench, one in a statement, 64 clients", &single, None);
    let name = "layer + PgStore, one at a time";
    row(name, &alone, "pgbench, one in a statement, 1 client", &limit_alone, None);
    Ok(())
}
