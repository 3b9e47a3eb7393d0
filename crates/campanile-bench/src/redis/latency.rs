//! One record at a time on an idle system.

use std::time::Duration;

use campanile::{BoxError, Clock, Guarded, IdempotencyLayer, RedisStore};
use tower::ServiceExt;

use super::{ROUNDS, Stage};
use crate::guarded::{Handler, Message, guarded, key};
use crate::report::{Goal, Report, Row};

const RECORDS: u64 = 10_000;

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    stage.clear()?;
    let store = stage.runtime.block_on(RedisStore::connect(stage.redis.url()))?;
    let layer = IdempotencyLayer::new(store, "latency", key)?;
    let (mut product, mut bare) = ((vec![], vec![]), (vec![], vec![]));
    for round in 0..ROUNDS {
        let times = stage.runtime.block_on(bare_trips(&stage.redis.url(), round))?;
        push(&mut bare, times);
        let times = stage.runtime.block_on(records(guarded(&layer), round))?;
        push(&mut product, times);
    }
    let mut row = |name, values, against, goal| {
        let against = Some(("two bare round trips", against));
        report.add(Row { area: "redis", name, unit: "us", values, against, goal: Some(goal) });
    };
    row("one record, p50", product.0, bare.0, Goal::AtMost(1.15));
    row("one record, p99", product.1, bare.1, Goal::AtMost(1.5));
    Ok(())
}

fn push(to: &mut (Vec<f64>, Vec<f64>), mut times: Vec<Duration>) {
    times.sort();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    to.0.push(at(0.5));
    to.1.push(at(0.99));
}

/// As little as acquire and complete can be: a `SET` and another, each waited for.
async fn bare_trips(url: &str, round: u64) -> Result<Vec<Duration>, BoxError> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(RECORDS as usize);
    for number in 0..RECORDS {
        let key = format!("bare-{round}-{number}");
        let start = clock.now();
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("processing").arg("NX").arg("GET").arg("PX").arg(30_000);
        let _: Option<String> = set.query_async(&mut connection).await?;
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("done").arg("PX").arg(600_000);
        let () = set.query_async(&mut connection).await?;
        times.push(clock.now() - start);
    }
    Ok(times)
}

async fn records(mut handler: impl Handler, round: u64) -> Result<Vec<Duration>, BoxError> {
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(RECORDS as usize);
    for number in 0..RECORDS {
        let message = Guarded::new(Message(round * RECORDS + number));
        let start = clock.now();
        handler.ready().await.map_err(Into::into)?.call(message).await.map_err(Into::into)?;
        times.push(clock.now() - start);
    }
    Ok(times)
}
