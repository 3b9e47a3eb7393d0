//! Acquire and complete for each message on a real Redis, against its limit.

mod duplicates;
mod limit;
mod tutorial;

use campanile::{BoxError, IdempotencyLayer, RedisStore};
use campanile_test::RedisServer;

use crate::guarded::{guarded, key, process};
use crate::report::{Report, Row};

const ROUNDS: u64 = 5;
const MESSAGES: u64 = 200_000;

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let redis = RedisServer::start()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let store = runtime.block_on(RedisStore::connect(redis.url()))?;
    let layer = IdempotencyLayer::new(store, "bench", key)?;
    let (mut product, mut limits, mut tutorials, mut alone) = (vec![], vec![], vec![], vec![]);
    // A round that is not counted warms the connections and Redis's memory up.
    for round in 0..=ROUNDS {
        redis.cli(&["FLUSHALL"])?;
        let first = round * MESSAGES;
        let took = runtime.block_on(process(guarded(&layer), first..first + MESSAGES, 256))?;
        redis.cli(&["FLUSHALL"])?;
        let one = MESSAGES * (ROUNDS + 1) + round * ONE_AT_A_TIME;
        let took_alone = runtime.block_on(process(guarded(&layer), one..one + ONE_AT_A_TIME, 1))?;
        redis.cli(&["FLUSHALL"])?;
        let limit = limit::limit(&redis)?;
        redis.cli(&["FLUSHALL"])?;
        let tutorial = runtime.block_on(tutorial::per_second(&redis.url()))?;
        if round > 0 {
            product.push(MESSAGES as f64 / took.as_secs_f64());
            alone.push(ONE_AT_A_TIME as f64 / took_alone.as_secs_f64());
            limits.push(limit);
            tutorials.push(tutorial);
        }
    }
    let row = |name, values, against, goal| Row {
        area: "redis",
        name,
        unit: "messages/s",
        values,
        against: Some(against),
        goal,
    };
    let bench = ("the limit by redis-benchmark", limits);
    let pool = ("one at a time through a pool", tutorials);
    report.add(row("layer + RedisStore, 256 at once", product.clone(), bench, Some(0.7)));
    report.add(row("layer + RedisStore, 256 at once", product, pool.clone(), Some(20.0)));
    report.add(row("layer + RedisStore, one at a time", alone, pool, None));
    duplicates::run(report, &redis, &runtime)
}

const ONE_AT_A_TIME: u64 = 10_000;
