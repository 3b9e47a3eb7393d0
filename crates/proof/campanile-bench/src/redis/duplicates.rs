//! Duplicates that wait for the first run.

use std::sync::Arc;
use std::time::Duration;

use campanile::policy::OnLocked;
use campanile::{BoxError, IdempotencyLayer, RedisStore, Runner};
use futures_util::future::try_join_all;
use tokio::sync::Notify;

use super::{Environment, ROUNDS};
use crate::report::{Report, Row};

const WAITING_DUPLICATES: usize = 10_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let (mut alone, mut together) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        env.clear()?;
        let waiting = |duplicates| env.runtime.block_on(measure_waiting(env, duplicates));
        alone.push(waiting(0)? as f64);
        together.push(waiting(WAITING_DUPLICATES)? as f64);
    }
    report.add(Row {
        area: "redis",
        name: "10 000 duplicates wait for a running key",
        unit: "keys read or written",
        values: together,
        reference: Some(("the run without them", alone)),
        goal: None,
    });
    Ok(())
}

/// Counts how many keys Redis reads and writes for one run of a handler while `duplicates`
/// duplicates wait.
async fn measure_waiting(env: &Environment, duplicates: usize) -> Result<u64, BoxError> {
    let store = RedisStore::connect(env.redis.url()).await?;
    let layer = IdempotencyLayer::new(store, "waiting", ())?
        .on_locked(OnLocked::Wait { at_most: Duration::from_secs(60) });
    let runner = Runner::from(layer);
    let (started, may_finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let before = commands(env)?;
    let id = format!("running-{duplicates}");
    let first = tokio::spawn({
        let (runner, started, may_finish, id) =
            (runner.clone(), started.clone(), may_finish.clone(), id.clone());
        async move {
            let work = async |_| {
                started.notify_one();
                may_finish.notified().await;
                Ok::<_, BoxError>(())
            };
            runner.run(id, work).await
        }
    });
    started.notified().await;
    let others = (0..duplicates).map(|_| {
        let (runner, id) = (runner.clone(), id.clone());
        tokio::spawn(async move { runner.run(id, async |_| Ok::<_, BoxError>(())).await })
    });
    let others: Vec<_> = others.collect();
    // Leaves the duplicates time to reach the keeper: the tasks spawned first have asked it before
    // the last one does.
    tokio::time::sleep(Duration::from_millis(500)).await;
    may_finish.notify_one();
    first.await??;
    for outcome in try_join_all(others).await? {
        if !outcome?.is_duplicate() {
            return Err("a duplicate was processed".into());
        }
    }
    Ok(commands(env)? - before)
}

/// Reads the number of commands on keys that the server has executed, including those in scripts.
fn commands(env: &Environment) -> Result<u64, BoxError> {
    let info = env.redis.cli(&["INFO", "commandstats"])?;
    let calls = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
    };
    let names = ["cmdstat_get", "cmdstat_mget", "cmdstat_set"];
    Ok(names.iter().filter_map(|name| calls(name)).sum())
}
