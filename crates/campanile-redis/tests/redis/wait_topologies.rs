//! Waits for replicas with several primaries, and after a failover.

use std::time::Duration;

use campanile_core::{Command, Reply};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisSentinel};
use tokio::time::timeout;

use crate::cluster::{patient, slot};
use crate::support::{Looks, acquire, acquired, apply, command, complete, insist, key, timed};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn each_shard_of_a_cluster_waits_for_its_own_replica() {
    let mut cluster = RedisCluster::builder().replicas(1).start().unwrap();
    let config = |timeout| patient(&cluster).with_wait(1, timeout).unwrap();
    let store = RedisStore::connect(config(LONG)).await.unwrap();
    let hasty = RedisStore::connect(config(Duration::from_millis(200))).await.unwrap();
    let acquires = |round: &str| -> Vec<_> {
        let keys = (0..60).map(|n| key(format!("{round} {n}")));
        keys.map(|key| command(&key, acquire(1))).collect()
    };
    for answer in store.apply_batch(acquires("a")).await {
        assert!(matches!(answer.unwrap().reply, Reply::Acquired { .. }));
    }

    let lonely = 0;
    let [replica] = *cluster.replicas_of(lonely) else { panic!("expected one replica") };
    cluster.pause(replica).unwrap();
    let is_lonely =
        |command: &Command| cluster.owner_of(slot(&cluster, &command.key)).unwrap() == lonely;
    let (refused, granted): (Vec<_>, Vec<_>) = acquires("b").into_iter().partition(is_lonely);
    assert!(!refused.is_empty() && !granted.is_empty());
    for answer in store.apply_batch(granted).await {
        assert!(matches!(answer.unwrap().reply, Reply::Acquired { .. }));
    }
    for answer in hasty.apply_batch(refused).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn what_was_waited_for_is_there_after_a_failover_by_sentinels() {
    let mut redis = RedisSentinel::start().unwrap();
    let config = RedisConfig::sentinel(redis.name(), redis.urls());
    let store = RedisStore::connect(config.clone().with_wait(1, LONG).unwrap()).await.unwrap();
    let keys: Vec<_> = (0..50).map(|n| key(n.to_string())).collect();
    for key in &keys {
        let grant = acquired(&store, key, 1).await;
        assert_eq!(apply(&store, key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    }
    redis.kill(0).unwrap();
    redis.until_other_primary(0).unwrap();
    let plain = RedisStore::connect(config).await.unwrap();
    for key in &keys {
        let reply = insist(&plain, key, acquire(2)).await;
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn a_wait_that_falls_short_is_a_reason_to_ask_the_sentinels_at_once() {
    const LOOKS: u64 = 12;
    let mut redis = RedisSentinel::start().unwrap();
    let config = RedisConfig::sentinel(redis.name(), redis.urls());
    let config = config.with_wait(1, Duration::from_millis(20)).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    redis.kill(1).unwrap();
    let mut looks = Looks::at(redis.sentinel(0));
    let refused = async {
        while looks.count() < LOOKS {
            apply(&store, &key("key"), acquire(1)).await.unwrap_err();
        }
    };
    let (took, ended) = timed(timeout(LONG, refused)).await;
    ended.expect("the sentinels should be asked");
    println!("{LOOKS} queries in {took:?}");
    // Without a shortfall the sentinels are asked once per second.
    assert!(took < Duration::from_secs(LOOKS - 2), "{took:?}");
}
