//! A server that does not support the configured wait is found at the start.

use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Severity};
use campanile_test::RedisServer;

use crate::support::{
    acquire, acquire_lock, apply, chain, complete, key, long_timeout, replica_of,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

async fn refusal_kinds(config: RedisConfig) -> Vec<FindingKind> {
    match RedisStore::connect(config).await {
        Err(ConnectError::Unsafe { findings, .. }) => findings.iter().map(Finding::kind).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn setting_out_of_bounds_is_connect_error() {
    let config = RedisConfig::new("redis://127.0.0.1").with_wait(0, LONG);
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("`replicas` of `with_wait`"), "{error}");
}

#[tokio::test]
async fn too_few_replicas_for_the_wait_is_a_finding() {
    let server = RedisServer::start().unwrap();
    let _replica = replica_of(&server);
    let config = |replicas| long_timeout(server.url()).with_wait(replicas, LONG);
    let store = RedisStore::connect(config(2)).await.unwrap();
    let mut findings = store.findings().iter();
    let finding = findings.find(|finding| finding.kind() == FindingKind::Replicas).unwrap();
    assert_eq!(finding.severity(), Severity::DataLoss);
    assert!(
        finding.observed().contains("1 replicas") && finding.observed().contains("2 are"),
        "{finding}"
    );

    let store = RedisStore::connect(config(1)).await.unwrap();
    assert!(store.findings().iter().all(|finding| finding.kind() != FindingKind::Replicas));
}

#[tokio::test]
async fn user_without_wait_permission_is_refused() {
    let rules = "app on >pw ~campanile:* ~{* -@all +eval +evalsha +get +mget +set +time";
    let server = RedisServer::builder().config("user", rules).start().unwrap();
    let config = long_timeout(format!("redis://app:pw@{}", server.addr())).with_wait(1, LONG);
    assert_eq!(refusal_kinds(config.clone()).await, [FindingKind::Permission]);

    server.cli(&["ACL", "SETUSER", "app", "+wait"]).unwrap();
    let _replica = replica_of(&server);
    let store = RedisStore::connect(config).await.unwrap();
    acquire_lock(&store, &key("key"), 1).await;
}

/// Valkey has WAITAOF, which Redis has only since 7.2.
#[tokio::test]
async fn waitaof_confirms_writes_on_disk() {
    let server = RedisServer::builder().valkey().config("appendfsync", "always").start().unwrap();
    let config = || long_timeout(server.url()).with_wait_aof(0, LONG);
    assert_eq!(refusal_kinds(config()).await, [FindingKind::Persistence]);
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]).unwrap();
    let store = RedisStore::connect(config()).await.unwrap();
    let grant = acquire_lock(&store, &key("key"), 1).await;
    assert_eq!(
        apply(&store, &key("key"), complete(grant, "done")).await.unwrap(),
        Reply::Completed
    );
    assert_eq!(store.shortfalls(), 0);

    let grant = acquire_lock(&store, &key("unsynced"), 1).await;
    // The server then leaves the sync to the kernel, and never knows of it.
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]).unwrap();
    let config = long_timeout(server.url()).with_wait_aof(0, SHORT);
    let store = RedisStore::connect(config).await.unwrap();
    let error = apply(&store, &key("refused"), acquire(1)).await.unwrap_err();
    assert!(chain(&error).contains("not on the primary's disk"), "{}", chain(&error));
    let reply = apply(&store, &key("unsynced"), complete(grant, "done")).await.unwrap();
    assert_eq!((reply, store.shortfalls()), (Reply::Completed, 1));

    server.cli(&["CONFIG", "SET", "appendfsync", "always"]).unwrap();
    let config = long_timeout(server.url()).with_wait_aof(1, SHORT);
    let store = RedisStore::connect(config).await.unwrap();
    assert!(apply(&store, &key("no replica"), acquire(1)).await.is_err());
}
