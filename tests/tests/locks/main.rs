//! Locks on a real Redis: kept while the handler works, lost in time when they cannot be kept.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod kept;
mod lost;

use std::time::Duration;

use campanile::{
    Guard, IdempotencyError, IdempotencyLayer, LockKeeper, RedisStore, policy::OnLost,
};
use campanile_test::RedisServer;

const TTL: Duration = Duration::from_secs(1);

/// A process as Redis sees one: a keeper and connections of its own.
async fn process(url: String) -> LockKeeper {
    LockKeeper::new(RedisStore::connect(url).await.unwrap()).unwrap()
}

fn guard(keeper: &LockKeeper, on_lost: OnLost) -> Guard {
    let layer = IdempotencyLayer::new(keeper, "locks", ()).unwrap();
    layer.with_lock_ttl(TTL).unwrap().with_lost(on_lost).into()
}

/// Whether another process finds the key locked.
async fn is_locked(other: &Guard, key: &str) -> bool {
    let run = other.run(key, async |_| Ok::<_, std::convert::Infallible>(())).await;
    match run {
        Ok(_) => false,
        Err(error) => matches!(
            IdempotencyError::find(&*error).unwrap(),
            IdempotencyError::Locked { settled: None, .. }
        ),
    }
}

/// How many entries there are; the namespace's own key is none.
fn entries(redis: &RedisServer) -> usize {
    redis.cli(&["DBSIZE"]).unwrap().trim().parse::<usize>().unwrap() - 1
}
