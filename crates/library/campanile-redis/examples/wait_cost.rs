//! The throughput in records per second, with and without waiting for a replica.
//!
//! ```text
//! cargo run --release -p campanile-redis --example wait_cost
//! ```
//!
//! Both servers and this program run on one machine, so the figures leave out the network round
//! trip that each wait adds. The variants take turns for three rounds, and the median is printed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::{LockKeeper, Runner};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisServer, eventually};
use tokio::task::JoinSet;
use tokio::time::Instant;

const ROUNDS: usize = 3;
const WAIT: Duration = Duration::from_secs(5);

type Variant = (&'static str, fn(RedisConfig) -> RedisConfig);

const VARIANTS: [Variant; 2] = [
    ("without waiting for the replica", |config| config),
    ("waiting for the replica", |config| config.with_wait(1, WAIT)),
];

/// The concurrent requests and the total number of records of each load.
const LOADS: [(u64, u64); 2] = [(1, 3_000), (256, 60_000)];

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let primary = RedisServer::start()?;
    let replica = RedisServer::start()?;
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()])?;
    let info = || primary.cli(&["INFO", "replication"]).ok();
    let is_online = || info()?.contains("state=online").then_some(());
    eventually(Duration::from_secs(20), is_online).ok_or("the replica did not come online")?;

    for (at_once, records) in LOADS {
        let mut rates = [const { Vec::new() }; VARIANTS.len()];
        // The first round warms up and is not counted.
        for round in 0..=ROUNDS {
            for ((_, config), rates) in VARIANTS.iter().zip(&mut rates) {
                primary.cli(&["FLUSHALL"])?;
                let store = RedisStore::connect(config(RedisConfig::new(primary.url()))).await?;
                let elapsed = run_load(store, at_once, records).await?;
                if round > 0 {
                    rates.push(records as f64 / elapsed.as_secs_f64());
                }
            }
        }
        for ((name, _), rates) in VARIANTS.iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            println!("{at_once} in flight, {name}: {:.0} records/s", rates[ROUNDS / 2]);
        }
    }
    Ok(())
}

/// Measures how long it takes to process `records` new keys.
async fn run_load(store: RedisStore, at_once: u64, records: u64) -> Result<Duration, BoxError> {
    let runner = Runner::new(LockKeeper::new(store)?, "cost")?;
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    let start = Instant::now();
    for _ in 0..at_once {
        let (runner, next) = (runner.clone(), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= records {
                    return Ok::<_, BoxError>(());
                }
                runner.run(number.to_string(), async |_| Ok::<_, BoxError>(())).await?;
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(start.elapsed())
}
