//! Locks on a real Redis: renewed while the handler works, lost in time when they cannot be
//! renewed, and completed after the partition of their record was revoked.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
mod loss;
mod renewal;
mod revoked;
#[path = "../support/store.rs"]
mod store;

use std::time::Duration;

use campanile::{
    IdempotencyConfig, IdempotencyError, IdempotencyLayer, LockKeeper, RedisStore, Runner,
    policy::OnLost,
};
use campanile_test::RedisServer;

const LOCK_TTL: Duration = Duration::from_secs(6);

/// A process from the view of Redis: a keeper with its own connections.
async fn start_keeper(url: String) -> LockKeeper {
    LockKeeper::new(RedisStore::connect(url).await.unwrap()).unwrap()
}

fn runner(keeper: &LockKeeper, on_lost: OnLost) -> Runner {
    let config = IdempotencyConfig::new("locks").with_lock_ttl(LOCK_TTL);
    IdempotencyLayer::new(keeper, config, ()).unwrap().on_lost(on_lost).into()
}

/// Checks whether another process finds the key locked.
async fn is_locked(contender: &Runner, key: &str) -> bool {
    loop {
        let run = contender.run(key, async |_| Ok::<_, std::convert::Infallible>(())).await;
        let Err(error) = run else { return false };
        match IdempotencyError::find(&*error).unwrap() {
            // On a busy machine, Redis may not answer in time.
            IdempotencyError::Store(_) => {}
            error => return matches!(error, IdempotencyError::Locked { settled: None, .. }),
        }
    }
}

/// Counts the entries. The namespace's own key is not an entry.
fn count_entries(redis: &RedisServer) -> usize {
    redis.cli(&["DBSIZE"]).unwrap().trim().parse::<usize>().unwrap() - 1
}
