//! Waits for replicas with several primaries, and after a failover.

use std::time::Duration;

use campanile_core::{Command, Reply};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisSentinel};
use tokio::time::timeout;

use crate::cluster::{long_timeout, slot};
use crate::support::{
    QueryCounter, acquire, acquire_lock, apply, apply_with_retry, command, complete, key, timed,
    with_long_timeouts,
};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn each_shard_waits_for_its_own_replica() {
    // No replica is promoted because its primary is late.
    let cluster = RedisCluster::builder().replicas(1).config("cluster-node-timeout", "15000");
    let mut cluster = cluster.start().unwrap();
    let config = |timeout| long_timeout(&cluster).with_wait(1, timeout);
    let store = RedisStore::connect(config(LONG)).await.unwrap();
    let short_wait = RedisStore::connect(config(Duration::from_millis(200))).await.unwrap();
    let acquires = |round: &str| -> Vec<_> {
        let keys = (0..60).map(|n| key(format!("{round} {n}")));
        keys.map(|key| command(&key, acquire(1))).collect()
    };
    for answer in store.apply_batch(acquires("a")).await {
        assert!(matches!(answer.unwrap().reply, Reply::Acquired { .. }));
    }

    let without_replica = 0;
    let [replica] = *cluster.replicas_of(without_replica) else { panic!("expected one replica") };
    cluster.pause(replica).unwrap();
    let lacks_replica = |command: &Command| {
        cluster.owner_of(slot(&cluster, &command.key)).unwrap() == without_replica
    };
    let (refused, granted): (Vec<_>, Vec<_>) = acquires("b").into_iter().partition(lacks_replica);
    assert!(!refused.is_empty() && !granted.is_empty());
    for answer in store.apply_batch(granted).await {
        assert!(matches!(answer.unwrap().reply, Reply::Acquired { .. }));
    }
    for answer in short_wait.apply_batch(refused).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn waited_writes_survive_a_sentinel_failover() {
    let mut redis = RedisSentinel::start().unwrap();
    let config = with_long_timeouts(RedisConfig::sentinel(redis.name(), redis.urls()));
    let store = RedisStore::connect(config.clone().with_wait(1, LONG)).await.unwrap();
    let keys: Vec<_> = (0..50).map(|n| key(n.to_string())).collect();
    for key in &keys {
        let grant = acquire_lock(&store, key, 1).await;
        assert_eq!(apply(&store, key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    }
    redis.kill(0).unwrap();
    redis.until_other_primary(0).unwrap();
    let plain = RedisStore::connect(config).await.unwrap();
    for key in &keys {
        let reply = apply_with_retry(&plain, key, acquire(2)).await;
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn wait_shortfall_polls_the_sentinels_at_once() {
    const QUERIES: u64 = 12;
    let mut redis = RedisSentinel::start().unwrap();
    let config = RedisConfig::sentinel(redis.name(), redis.urls());
    let config = config.with_wait(1, Duration::from_millis(20));
    let store = RedisStore::connect(config).await.unwrap();
    redis.kill(1).unwrap();
    let mut queries = QueryCounter::new(redis.sentinel(0));
    let refused = async {
        while queries.count() < QUERIES {
            apply(&store, &key("key"), acquire(1)).await.unwrap_err();
        }
    };
    let (took, ended) = timed(timeout(LONG, refused)).await;
    ended.expect("the sentinels should be asked");
    println!("{QUERIES} queries in {took:?}");
    // Without a shortfall the sentinels are asked once per second.
    assert!(took < Duration::from_secs(QUERIES - 2), "{took:?}");
}
