//! The events that the store logs. A separate test binary, because tracing caches the interest in
//! each callsite for the whole process, and other tests would reach a callsite first without a
//! subscriber.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../redis/aof.rs"]
mod aof;
mod certificates;
mod lines;
mod settings;
#[allow(dead_code, reason = "shared with the other test binary, which uses all of it")]
#[path = "../redis/support.rs"]
mod support;

use std::time::Duration;

use campanile_core::{FencingToken, IdempotencyKey, Namespace, Operation, Reply, StoreKey};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper};
use campanile_redis::{RedisConfig, RedisStore, Safety};
use campanile_test::{RedisSentinel, RedisServer, free_port};

use lines::Lines;
use support::{
    acquire, acquire_lock, apply, complete, grant, key, load_at_once, long_timeout, replica_of,
};

async fn store(server: &RedisServer) -> RedisStore {
    RedisStore::connect(long_timeout(server.url())).await.unwrap()
}

async fn complete_key(store: &RedisStore, name: &'static str) {
    let key = key(name);
    let grant = acquire_lock(store, &key, 1).await;
    assert_eq!(apply(store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
}

#[tokio::test]
async fn findings_are_logged_once() {
    let mut server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    let config = long_timeout(server.url()).with_safety(Safety::Warn);
    let store = RedisStore::connect(config).await.unwrap();
    complete_key(&store, "a").await;
    server.restart().unwrap();
    complete_key(&store, "b").await;
    let address = server.addr().to_string();
    for setting in ["allkeys-lru", "appendonly no", "no replica"] {
        assert_eq!(lines.count(&["WARN", setting, &address]), 1, "{setting}: {lines:?}");
    }

    let quiet = Lines::default();
    let _guard = quiet.listen();
    RedisStore::connect(RedisConfig::new(server.url()).with_safety(Safety::Off)).await.unwrap();
    assert_eq!(quiet.count(&["WARN"]), 0, "{quiet:?}");
}

#[tokio::test]
async fn unavailable_server_is_logged_once_while_connecting() {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let lines = Lines::default();
    let _guard = lines.listen();
    let config = RedisConfig::new(format!("redis://{address}"));
    let config = config.with_connect_timeout(Duration::from_secs(1));
    RedisStore::connect(config).await.unwrap_err();
    let expected = ["WARN", "not available yet", &address, "refused", "limit=1s"];
    assert_eq!(lines.count(&expected), 1, "{lines:?}");
    assert_eq!(lines.count(&["WARN"]), 1, "{lines:?}");
}

#[tokio::test]
async fn restart_that_loses_all_data_is_logged() {
    let mut server = RedisServer::start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    complete_key(&store, "b").await;
    server.restart().unwrap();
    complete_key(&store, "c").await;
    complete_key(&store, "d").await;
    assert_eq!(lines.count(&["ERROR", "lost its data", support::NAMESPACE]), 1, "{lines:?}");
    assert_eq!(lines.count(&["ERROR", "lost completions"]), 1, "{lines:?}");
}

#[tokio::test]
async fn flush_is_logged_without_a_new_connection() {
    let server = RedisServer::start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    server.cli(&["FLUSHALL"]).unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    complete_key(&store, "b").await;
    complete_key(&store, "c").await;
    assert_eq!(lines.count(&["ERROR", "lost its data", support::NAMESPACE]), 1, "{lines:?}");
    assert_eq!(lines.count(&["discarded a connection"]), 0, "{lines:?}");
}

#[tokio::test]
async fn concurrent_first_uses_of_namespace_log_no_loss() {
    let server = RedisServer::start().unwrap();
    let store = store(&server).await;
    let lines = Lines::default();
    let _guard = lines.listen();
    for round in 0..50 {
        let namespace = Namespace::try_from(format!("round-{round}").as_str()).unwrap();
        let key = |n: usize| {
            let key = IdempotencyKey::new(n.to_string()).unwrap();
            StoreKey::new(namespace.clone(), &key)
        };
        let keys: Vec<_> = (0..8).map(key).collect();
        let all = keys.iter().map(|key| apply(&store, key, acquire(1)));
        for reply in futures_util::future::join_all(all).await {
            assert!(matches!(reply.unwrap(), Reply::Acquired { .. }));
        }
    }
    assert_eq!(lines.count(&["ERROR"]), 0, "{lines:?}");
}

#[tokio::test]
async fn restart_that_loses_last_completion_is_logged() {
    let mut server = RedisServer::start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    server.cli(&["SAVE"]).unwrap();
    complete_key(&store, "b").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    server.restart().unwrap();
    complete_key(&store, "c").await;
    assert_eq!(lines.count(&["ERROR", "lost completions", &server.addr().to_string()]), 1);
    assert_eq!(lines.count(&["ERROR"]), 1, "the namespace should still exist: {lines:?}");
}

/// As after a power loss: the end of the file was not synced.
#[tokio::test]
async fn log_without_its_end_loses_last_completion_and_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = aof::server(&folder).start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    complete_key(&store, "b").await;
    server.kill().unwrap();
    aof::cut(&folder, 1);
    server.restart().unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    let reply = apply(&store, &key("a"), acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { .. }), "{reply:?}");
    let reply = apply(&store, &key("b"), acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Locked { .. }), "{reply:?}");
    assert_eq!(lines.count(&["ERROR", "lost completions", &server.addr().to_string()]), 1);
    assert_eq!(lines.count(&["ERROR"]), 1, "the namespace should still exist: {lines:?}");
}

#[tokio::test]
async fn restart_that_keeps_last_completion_is_logged() {
    let mut server =
        RedisServer::builder().append_only(true).config("appendfsync", "always").start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    for name in ["b", "c"] {
        server.restart().unwrap();
        complete_key(&store, name).await;
    }
    assert_eq!(lines.count(&["WARN", "restarted", "still there"]), 2, "{lines:?}");
    assert_eq!(lines.count(&["ERROR"]), 0, "{lines:?}");
}

#[tokio::test]
async fn last_completion_is_checked_after_loading() {
    let mut server = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        // In µs for each key. Clients are served after every thousand keys.
        .config("key-load-delay", "100")
        .start()
        .unwrap();
    let (store, url) = (store(&server).await, server.url());
    complete_key(&store, "a").await;
    let fill = "for n = 1, 100000 do redis.call('SET', 'filler' .. n, '') end";
    server.cli(&["EVAL", fill, "0"]).unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    server.kill().unwrap();
    let restart = std::thread::spawn(move || {
        server.restart().unwrap();
        server
    });
    let mut was_loading = false;
    while let Err(error) = apply(&store, &key("b"), acquire(1)).await {
        if !was_loading && support::chain(&error).contains("loading the dataset") {
            was_loading = true;
            load_at_once(&url);
        }
    }
    let _server = restart.join().unwrap();
    complete_key(&store, "c").await;
    assert!(was_loading, "{lines:?}");
    assert_eq!(lines.count(&["WARN", "restarted", "still there"]), 1, "{lines:?}");
    assert_eq!(lines.count(&["WARN", "restarted"]), 1, "{lines:?}");
}

#[tokio::test]
async fn reconnect_to_same_server_logs_no_loss() {
    let server = RedisServer::start().unwrap();
    let store = store(&server).await;
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    complete_key(&store, "b").await;
    assert_eq!(lines.count(&["discarded a connection"]), 1, "{lines:?}");
    assert_eq!(lines.count(&["restarted"]) + lines.count(&["ERROR"]), 0, "{lines:?}");
}

#[tokio::test]
async fn data_loss_is_logged_without_replication_id() {
    let rules = "app on >pw ~campanile:* ~{* -@all +eval +evalsha +get +mget +set +time";
    let mut server = RedisServer::builder().config("user", rules).start().unwrap();
    let url = format!("redis://app:pw@{}", server.addr());
    let store = RedisStore::connect(long_timeout(url)).await.unwrap();
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    server.restart().unwrap();
    complete_key(&store, "b").await;
    assert_eq!(lines.count(&["ERROR", "lost its data"]), 1, "{lines:?}");
}

#[tokio::test]
async fn replica_shortfall_is_logged_at_start_and_end() {
    let server = RedisServer::start().unwrap();
    let config = long_timeout(server.url()).with_wait(1, Duration::from_millis(50));
    let store = RedisStore::connect(config).await.unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    for name in ["a", "b", "c"] {
        apply(&store, &key(name), acquire(1)).await.unwrap_err();
    }
    assert_eq!(lines.count(&["WARN", "a Redis failover would lose", "0 of 1"]), 1, "{lines:?}");

    let _replica = replica_of(&server);
    let mut tries = 0;
    while apply(&store, &key("d"), acquire(1)).await.is_err() {
        tries += 1;
        assert!(tries < 200, "the replica should be available: {lines:?}");
    }
    assert_eq!(lines.count(&["INFO", "replicated again"]), 1, "{lines:?}");
}

#[tokio::test]
async fn replicated_writes_log_nothing() {
    let server = RedisServer::start().unwrap();
    let _replica = replica_of(&server);
    let config = long_timeout(server.url()).with_wait(1, Duration::from_secs(60));
    let store = RedisStore::connect(config).await.unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    complete_key(&store, "a").await;
    assert_eq!(lines.count(&["replicated"]), 0, "{lines:?}");
}

#[tokio::test]
async fn failover_that_keeps_last_completion_is_logged() {
    let mut redis = RedisSentinel::start().unwrap();
    let config = RedisConfig::sentinel(redis.name(), redis.urls());
    let config = config.with_command_timeout(Duration::from_secs(8));
    let with_wait = config.clone().with_wait(1, Duration::from_secs(60));
    let store = RedisStore::connect(with_wait).await.unwrap();
    complete_key(&store, "a").await;
    let lines = Lines::default();
    let _guard = lines.listen();
    redis.kill(0).unwrap();
    redis.until_other_primary(0).unwrap();
    // The replica that was waited for has been promoted and has no replica of its own.
    let ttl = Duration::from_secs(60);
    let renew = Operation::Renew { grant: grant(FencingToken::ZERO, 1), ttl };
    let answered = async || apply(&store, &key("other"), renew.clone()).await.is_ok();
    for _ in 0..200 {
        if answered().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lines.count(&["WARN", "failed over", "still there"]), 1, "{lines:?}");
    assert_eq!(lines.count(&["ERROR"]), 0, "{lines:?}");
}

#[tokio::test]
async fn too_long_timeout_is_logged_with_the_setting() {
    let server = RedisServer::start().unwrap();
    let store = async |timeout, wait| {
        let config = RedisConfig::new(server.url()).with_command_timeout(timeout);
        let config = match wait {
            Some(wait) => config.with_wait(1, wait),
            None => config,
        };
        RedisStore::connect(config.with_safety(Safety::Off)).await.unwrap()
    };
    let lines = Lines::default();
    let _guard = lines.listen();
    let count_warnings = |what: &[&str]| {
        let what: Vec<_> = ["WARN", "with_command_timeout"].iter().chain(what).copied().collect();
        lines.count(&what)
    };
    let second = Duration::from_secs(1);
    let keeper = LockKeeper::new(store(second, None).await).unwrap();
    let layer_with_ttl = |ttl| {
        let config = IdempotencyConfig::new("n").with_lock_ttl(ttl);
        let _ = IdempotencyLayer::new(&keeper, config, ()).unwrap();
    };
    layer_with_ttl(second * 6);
    assert_eq!(count_warnings(&[]), 0, "{lines:?}");
    layer_with_ttl(second * 5);
    assert_eq!(count_warnings(&["longest=1s", "limit=833.333333ms"]), 1, "{lines:?}");

    let _ = LockKeeper::new(store(second * 5, None).await).unwrap();
    assert_eq!(count_warnings(&[]), 1, "{lines:?}");
    let _ = LockKeeper::new(store(second * 6, None).await).unwrap();
    assert_eq!(count_warnings(&["longest=6s", "limit=5s"]), 1, "{lines:?}");
    let _ = LockKeeper::new(store(second, Some(second * 6)).await).unwrap();
    assert_eq!(count_warnings(&["longest=7s", "limit=5s"]), 1, "{lines:?}");
}
