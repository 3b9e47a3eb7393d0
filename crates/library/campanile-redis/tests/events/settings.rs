//! Settings of a server that change while the store is used.

use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{RedisConfig, RedisStore, Safety};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::lines::Lines;
use crate::support::{
    acquire, acquire_lock, apply, chain, complete, key, long_timeout, with_long_timeouts,
};

fn limited_server() -> RedisServer {
    RedisServer::builder().config("maxmemory", "100mb").start().unwrap()
}

fn set(server: &RedisServer, name: &str, value: &str) {
    server.cli(&["CONFIG", "SET", name, value]).unwrap();
}

/// Lets the time pass in which a server is not looked at again.
async fn until_look_is_due() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::resume();
}

async fn refused(store: &RedisStore, name: &'static str) -> String {
    let error = apply(store, &key(name), acquire(1)).await.unwrap_err();
    let text = chain(&error);
    assert!(text.contains("is not safe to use"), "{text}");
    text
}

#[tokio::test]
async fn changed_eviction_policy_refuses_locks_until_corrected() {
    let server = limited_server();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let held = acquire_lock(&store, &key("held"), 1).await;
    let lines = Lines::default();
    let _guard = lines.listen();
    set(&server, "maxmemory-policy", "volatile-lru");
    until_look_is_due().await;
    let text = refused(&store, "a").await;
    assert!(text.contains("maxmemory-policy volatile-lru"), "{text}");
    refused(&store, "b").await;
    let values = ["was=\"maxmemory-policy noeviction\"", "now=\"maxmemory-policy volatile-lru\""];
    let address = server.addr().to_string();
    let expected = ["ERROR", "become unsafe", "no lock", &address, values[0], values[1]];
    assert_eq!(lines.count(&expected), 1, "{lines:?}");
    // The handler has run; without its completion it would run again.
    let reply = apply(&store, &key("held"), complete(held, "done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
    until_look_is_due().await;
    refused(&store, "c").await;
    assert_eq!(lines.count(&["ERROR"]), 1, "{lines:?}");

    set(&server, "maxmemory-policy", "noeviction");
    until_look_is_due().await;
    acquire_lock(&store, &key("a"), 1).await;
    assert_eq!(lines.count(&["INFO", "safe to use again", &address]), 1, "{lines:?}");
    set(&server, "maxmemory-policy", "volatile-ttl");
    until_look_is_due().await;
    refused(&store, "d").await;
    assert_eq!(lines.count(&["ERROR"]), 2, "{lines:?}");
}

#[tokio::test]
async fn each_new_connection_looks_at_the_settings() {
    let server = limited_server();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    // Before the first connection, and after a broken one.
    for policy in ["allkeys-lru", "volatile-lru"] {
        set(&server, "maxmemory-policy", policy);
        assert!(refused(&store, "a").await.contains(policy));
        set(&server, "maxmemory-policy", "noeviction");
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        until_look_is_due().await;
        acquire_lock(&store, &key(policy), 1).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    }
}

#[tokio::test]
async fn changed_settings_of_accepted_server_are_logged_once() {
    let server = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        .config("maxmemory-policy", "volatile-lru")
        .start()
        .unwrap();
    let config = long_timeout(server.url()).with_safety(Safety::Warn);
    let store = RedisStore::connect(config).await.unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    for (name, value, expected) in [
        ("appendfsync", "no", ["WARN", "appendfsync always", "appendfsync no"]),
        ("appendonly", "no", ["WARN", "appendonly 1", "appendonly 0"]),
        ("maxmemory", "100mb", ["ERROR", "maxmemory 0", "maxmemory 104857600"]),
    ] {
        set(&server, name, value);
        for round in 0..2 {
            until_look_is_due().await;
            acquire_lock(&store, &key(format!("{name} {round}")), 1).await;
        }
        assert_eq!(lines.count(&expected), 1, "{lines:?}");
    }
    assert_eq!(lines.count(&["WARN"]) + lines.count(&["ERROR"]), 3, "{lines:?}");
}

#[tokio::test]
async fn forbidden_config_command_hides_no_eviction() {
    let rules =
        "app on >pw ~campanile:* ~{* -@all +eval +evalsha +get +mget +set +time +info +config|get";
    let server =
        RedisServer::builder().config("maxmemory", "100mb").config("user", rules).start().unwrap();
    let url = format!("redis://app:pw@{}", server.addr());
    let store = RedisStore::connect(long_timeout(url)).await.unwrap();
    acquire_lock(&store, &key("a"), 1).await;
    server.cli(&["ACL", "SETUSER", "app", "-config|get"]).unwrap();
    set(&server, "maxmemory-policy", "volatile-lru");
    until_look_is_due().await;
    refused(&store, "b").await;
    // What cannot be seen any more has not been corrected.
    server.cli(&["ACL", "SETUSER", "app", "-info"]).unwrap();
    until_look_is_due().await;
    refused(&store, "c").await;
}

#[tokio::test]
async fn server_that_becomes_a_replica_is_reported() {
    let (server, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    // It would accept writes and lose them.
    set(&server, "replica-read-only", "no");
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    acquire_lock(&store, &key("a"), 1).await;
    let lines = Lines::default();
    let _guard = lines.listen();
    server.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).unwrap();
    until_look_is_due().await;
    let error = apply(&store, &key("b"), acquire(1)).await.unwrap_err();
    assert!(chain(&error).contains("is a replica"), "{}", chain(&error));
    let expected = ["ERROR", "was=\"role master\"", "now=\"role slave\""];
    assert_eq!(lines.count(&expected), 1, "{lines:?}");
    server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    acquire_lock(&store, &key("c"), 1).await;
}

#[tokio::test]
async fn one_unsafe_node_of_cluster_refuses_only_its_keys() {
    let cluster = RedisCluster::builder().config("maxmemory", "100mb").start().unwrap();
    let config = with_long_timeouts(RedisConfig::cluster(cluster.urls()));
    let store = RedisStore::connect(config).await.unwrap();
    let lines = Lines::default();
    let _guard = lines.listen();
    let keys: Vec<_> = (0..40).map(|n| key(format!("key {n}"))).collect();
    for key in &keys[..20] {
        acquire_lock(&store, key, 1).await;
    }
    set(cluster.node(1), "maxmemory-policy", "allkeys-lru");
    until_look_is_due().await;
    let address = cluster.node(1).addr().to_string();
    let mut refused = 0;
    for key in &keys[20..] {
        match apply(&store, key, acquire(1)).await {
            Ok(reply) => assert!(matches!(reply, Reply::Acquired { .. }), "{reply:?}"),
            Err(error) => {
                assert!(chain(&error).contains(&address), "{}", chain(&error));
                refused += 1;
            }
        }
    }
    assert!((1..20).contains(&refused), "{refused}");
    assert_eq!(lines.count(&["ERROR", &address]), 1, "{lines:?}");
}

#[tokio::test]
async fn promoted_replica_is_compared_with_its_primary() {
    let mut redis = RedisSentinel::builder().config("maxmemory", "100mb").start().unwrap();
    let config = with_long_timeouts(RedisConfig::sentinel(redis.name(), redis.urls()));
    let store = RedisStore::connect(config).await.unwrap();
    acquire_lock(&store, &key("a"), 1).await;
    let old = redis.primary().unwrap();
    for server in (0..2).filter(|server| *server != old) {
        set(redis.server(server), "maxmemory-policy", "volatile-lru");
    }
    let lines = Lines::default();
    let _guard = lines.listen();
    redis.kill(old).unwrap();
    let new = redis.until_other_primary(old).unwrap();
    let is_refused = async || {
        let error = apply(&store, &key("b"), acquire(1)).await.unwrap_err();
        chain(&error).contains("volatile-lru")
    };
    let mut tries = 0;
    while !is_refused().await {
        tries += 1;
        assert!(tries < 400, "{lines:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let address = redis.server(new).addr().to_string();
    let expected = ["ERROR", &address, "was=\"maxmemory-policy noeviction\""];
    assert_eq!(lines.count(&expected), 1, "{lines:?}");
}
