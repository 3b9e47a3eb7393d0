//! A store on a primary that sentinels name.

use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{ConnectError, RedisConfig, RedisStore};
use campanile_test::contract::{self, RealTime};
use campanile_test::{RedisSentinel, RedisServer, eventually, free_port};

use crate::support::{
    MAX_CALL_TIME, QueryCounter, acquire, acquire_lock, apply, apply_with_retry, chain, complete,
    key, timed,
};

const MAX_WAIT: Duration = Duration::from_secs(30);

/// A store that finds a failover within seconds, and a busy machine in time.
fn config(redis: &RedisSentinel) -> RedisConfig {
    let config = RedisConfig::sentinel(redis.name(), redis.urls());
    config.with_command_timeout(Duration::from_secs(8)).with_connect_timeout(MAX_WAIT)
}

/// Waits until the replica has as many keys as the primary.
fn wait_until_replicated(redis: &RedisSentinel, primary: usize, replica: usize) {
    let is_replicated = || (keys(redis, primary) == keys(redis, replica)).then_some(());
    eventually(MAX_WAIT, is_replicated).expect("the replica should catch up");
}

fn keys(redis: &RedisSentinel, server: usize) -> usize {
    redis.server(server).cli(&["DBSIZE"]).unwrap().parse().unwrap()
}

/// Acquires one key after the other until the condition holds. Counts the keys.
async fn write_until(store: &RedisStore, mut condition: impl FnMut() -> bool) -> usize {
    for n in 0..1_000 {
        if condition() {
            return n;
        }
        acquire_lock(store, &key(format!("{n}")), 1).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held");
}

#[tokio::test]
async fn store_contract_holds_behind_sentinels() {
    // Without a replica, no stall is a failover.
    let redis = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    let store = RedisStore::connect(config(&redis)).await.unwrap();
    contract::run(&store, &RealTime).await;
    contract::run_expire(&store, &RealTime).await;
}

#[tokio::test]
async fn killed_primary_is_replaced_by_promoted_replica() {
    let mut redis = RedisSentinel::builder().password("sesame").start().unwrap();
    let config = config(&redis).with_credentials("default", "sesame");
    let store = RedisStore::connect(config).await.unwrap();
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;
    wait_until_replicated(&redis, 0, 1);
    redis.kill(0).unwrap();
    let error = apply(&store, &key, complete(grant, "done")).await.unwrap_err();
    assert!(!chain(&error).contains("sesame"), "{}", chain(&error));
    redis.until_other_primary(0).unwrap();
    let (took, reply) = timed(apply_with_retry(&store, &key, complete(grant, "done"))).await;
    assert_eq!(reply, Reply::Completed);
    println!("answered {took:?} after the promotion");
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test]
async fn hung_primary_is_replaced_by_promoted_replica() {
    let mut redis = RedisSentinel::start().unwrap();
    let timeout = Duration::from_secs(2);
    let config = config(&redis).with_command_timeout(timeout);
    let store = RedisStore::connect(config).await.unwrap();
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;
    wait_until_replicated(&redis, 0, 1);
    redis.pause(0).unwrap();
    redis.until_other_primary(0).unwrap();
    let (took, reply) = timed(apply_with_retry(&store, &key, complete(grant, "done"))).await;
    assert_eq!(reply, Reply::Completed);
    println!("answered {took:?} after the promotion, with a timeout of {timeout:?}");
}

#[tokio::test]
async fn demoted_primary_is_replaced_by_new_primary() {
    let mut redis = RedisSentinel::start().unwrap();
    let store = RedisStore::connect(config(&redis)).await.unwrap();
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;
    wait_until_replicated(&redis, 0, 1);
    assert_eq!(redis.failover().unwrap(), 1);
    // The old primary accepts writes for a while before it becomes a replica. Its connection stays
    // open, and what is written to it until then is lost.
    let follows = || redis.server(0).cli(&["ROLE"]).ok().filter(|role| role.starts_with("slave"));
    redis.server(0).cli(&["REPLICAOF", "127.0.0.1", &redis.server(1).port().to_string()]).unwrap();
    eventually(MAX_WAIT, follows).unwrap();
    assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
}

#[tokio::test]
async fn writable_old_primary_is_abandoned_after_failover() {
    let mut redis = RedisSentinel::start().unwrap();
    let store = RedisStore::connect(config(&redis)).await.unwrap();
    acquire_lock(&store, &key("before"), 1).await;
    wait_until_replicated(&redis, 0, 1);
    let failover = tokio::task::spawn_blocking(move || (redis.failover().unwrap(), redis));
    // In use, the store asks the sentinels once a second.
    for n in 0.. {
        if failover.is_finished() {
            break;
        }
        acquire_lock(&store, &key(format!("during {n}")), 1).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (primary, redis) = failover.await.unwrap();
    assert_eq!(primary, 1);
    // Most of the sentinels name the new primary now.
    let (had, mut queries) = (keys(&redis, 1), QueryCounter::new(redis.sentinel(0)));
    let (took, lost) = timed(write_until(&store, || keys(&redis, 1) > had)).await;
    let (role, queries) = (redis.server(0).cli(&["ROLE"]).unwrap(), queries.count());
    println!("switched {took:?} after the sentinels, {lost} writes were lost, {queries} queries");
    assert!(role.starts_with("master"), "switched only after a refused write: {role}");
    // One may have been answered before, one finds the new primary, and one connects to it.
    assert!(queries <= 3, "{queries} queries, {took:?}");
    // The store does not return to the old primary either.
    let (old, mut queries) = (keys(&redis, 0), QueryCounter::new(redis.sentinel(0)));
    write_until(&store, || queries.count() > 2).await;
    assert_eq!(keys(&redis, 0), old);
}

#[tokio::test]
async fn minority_of_sentinels_does_not_move_the_store() {
    let mut redis = RedisSentinel::start().unwrap();
    // A sentinel that names a server which reports itself as a primary.
    let cut_off = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    let urls = [cut_off.urls(), redis.urls()].concat();
    let store = RedisStore::connect(RedisConfig::sentinel(redis.name(), urls)).await.unwrap();
    acquire_lock(&store, &key("first"), 1).await;
    // Now the only sentinel that still answers.
    (0..3).for_each(|sentinel| redis.kill_sentinel(sentinel).unwrap());
    let mut queries = QueryCounter::new(cut_off.sentinel(0));
    write_until(&store, || queries.count() > 2).await;
    assert_eq!(keys(&cut_off, 0), 0);
}

#[tokio::test]
async fn dead_hung_or_stale_sentinels_are_skipped() {
    let mut redis = RedisSentinel::start().unwrap();
    // One names an old primary that has become a replica since, and one does not exist.
    let stale = RedisServer::start().unwrap();
    redis.pause_sentinel(0).unwrap();
    redis.kill_sentinel(1).unwrap();
    let mut urls = redis.urls();
    urls.push(format!("redis://127.0.0.1:{}", free_port().unwrap()));
    // Not a sentinel: the server rejects the query.
    urls.insert(0, stale.url());
    let config = RedisConfig::sentinel(redis.name(), urls);
    let (took, store) = timed(RedisStore::connect(config)).await;
    acquire_lock(&store.unwrap(), &key("key"), 1).await;
    assert!(took < MAX_CALL_TIME, "{took:?}");
}

#[tokio::test]
async fn sentinel_that_names_a_replica_is_not_trusted() {
    let redis = RedisSentinel::builder().sentinels(1).start().unwrap();
    let replica = redis.server(1).port().to_string();
    let sentinel = redis.sentinel(0);
    sentinel.cli(&["SENTINEL", "MONITOR", "stale", "127.0.0.1", &replica, "1"]).unwrap();
    let config = RedisConfig::sentinel("stale", redis.urls());
    let config = config.with_connect_timeout(Duration::from_secs(1));
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert!(chain(&error).contains("is not a primary"), "{}", chain(&error));
}

#[tokio::test]
async fn connect_waits_for_promotion_of_named_server() {
    let redis = RedisSentinel::builder().sentinels(1).start().unwrap();
    let promoted = redis.server(1);
    let (sentinel, port) = (redis.sentinel(0), promoted.port().to_string());
    sentinel.cli(&["SENTINEL", "MONITOR", "later", "127.0.0.1", &port, "1"]).unwrap();
    let config = RedisConfig::sentinel("later", redis.urls());
    let config = config.with_connect_timeout(Duration::from_secs(60));
    let promote = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        promoted.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    };
    let (store, ()) = tokio::join!(RedisStore::connect(config), promote);
    acquire_lock(&store.unwrap(), &key("key"), 1).await;
}

#[tokio::test]
async fn disagreeing_sentinels_resolve_to_actual_primary() {
    let redis = RedisSentinel::builder().sentinels(1).start().unwrap();
    let behind = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    let (name, replica) = (redis.name(), redis.server(1).port().to_string());
    let sentinel = behind.sentinel(0);
    sentinel.cli(&["SENTINEL", "REMOVE", name]).unwrap();
    sentinel.cli(&["SENTINEL", "MONITOR", name, "127.0.0.1", &replica, "1"]).unwrap();
    for urls in [[behind.urls(), redis.urls()], [redis.urls(), behind.urls()]] {
        let config = RedisConfig::sentinel(name, urls.concat());
        let store = RedisStore::connect(config).await.unwrap();
        acquire_lock(&store, &key("key"), 1).await;
    }
    assert_eq!(redis.server(0).cli(&["EXISTS", "campanile:{tests}"]).unwrap(), "1");
}

#[tokio::test]
async fn unknown_primary_name_error_shows_the_sentinels() {
    let redis = RedisSentinel::builder().replicas(0).sentinel_password("creak").start().unwrap();
    let config = RedisConfig::sentinel("belfry", redis.urls());
    assert!(!format!("{config:?}").contains("creak"), "{config:?}");
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "waits in vain: {error:?}");
    let text = chain(&error);
    assert!(text.contains("belfry") && text.contains("does not know this name"), "{text}");
    assert!(text.contains(&redis.sentinel(0).addr().to_string()), "{text}");
    assert!(!text.contains("creak"), "{text}");

    let wrong = redis.urls().into_iter().map(|url| url.replace("creak", "Squeak"));
    let config = RedisConfig::sentinel(redis.name(), wrong);
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "waits in vain: {error:?}");
    let text = chain(&error);
    assert!(text.contains("WRONGPASS") || text.contains("authentication"), "{text}");
    assert!(!text.contains("Squeak"), "{text}");
}
