//! Ten thousand locks that are held and renewed.

use std::sync::Arc;
use std::time::Duration;

use campanile::{BoxError, IdempotencyConfig, IdempotencyLayer, RedisStore, Runner};
use tokio::sync::Semaphore;

use super::{Environment, cpu, script_stat};
use crate::report::{Goal, Report, Row};

const LOCKS: u32 = 10_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let mut row = |name, values, goal| {
        let goal = Some(goal);
        report.add(Row { area: "redis", name, unit: "% of a core", values, reference: None, goal });
    };
    let slow = env.runtime.block_on(hold_locks(env, Duration::from_secs(30)))?;
    row("Redis renews 10 000 locks of 30 s", vec![slow.redis], Goal::AtMost(1.0));
    let fast = env.runtime.block_on(hold_locks(env, Duration::from_secs(3)))?;
    row("the keeper's thread, 10 000 locks of 3 s", vec![fast.keeper], Goal::AtMost(5.0));
    Ok(())
}

/// Load in percent of a core.
struct Load {
    /// Time of the server's commands, as counted by Redis.
    redis: f64,
    keeper: f64,
}

/// Holds the locks for a minute.
async fn hold_locks(env: &Environment, ttl: Duration) -> Result<Load, BoxError> {
    const MINUTE: Duration = Duration::from_secs(60);
    env.clear()?;
    let store = RedisStore::connect(env.redis.url()).await?;
    let layer =
        IdempotencyLayer::new(store, IdempotencyConfig::new("renew").with_lock_ttl(ttl), ())?;
    let runner = Runner::from(layer);
    let (held, may_finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let runs: Vec<_> = (0..LOCKS)
        .map(|number| {
            let (runner, held, may_finish) = (runner.clone(), held.clone(), may_finish.clone());
            let work = async move |_| {
                held.add_permits(1);
                may_finish.acquire().await?.forget();
                Ok::<_, BoxError>(())
            };
            tokio::spawn(async move { runner.run(number, work).await })
        })
        .collect();
    held.acquire_many(LOCKS).await?.forget();

    let (redis, keeper) = (script_time(env)?, cpu::of_threads("campanile-keeper")?);
    tokio::time::sleep(MINUTE).await;
    let percent = |time: Duration| time.as_secs_f64() / MINUTE.as_secs_f64() * 100.0;
    let load = Load {
        redis: percent(script_time(env)? - redis),
        keeper: percent(cpu::of_threads("campanile-keeper")? - keeper),
    };
    may_finish.add_permits(LOCKS as usize);
    for run in runs {
        run.await??;
    }
    Ok(load)
}

/// Reads the time that Redis has spent in scripts.
fn script_time(env: &Environment) -> Result<Duration, BoxError> {
    Ok(Duration::from_secs_f64(script_stat(&env.redis, "usec=")? / 1e6))
}
