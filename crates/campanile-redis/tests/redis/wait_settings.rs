//! A server that does not support the configured wait is found at the start.

use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Severity};
use campanile_test::RedisServer;

use crate::support::{acquired, apply, complete, key, patient, replica_of};

const LONG: Duration = Duration::from_secs(60);

async fn refused(config: RedisConfig) -> Vec<FindingKind> {
    match RedisStore::connect(config).await {
        Err(ConnectError::Unsafe { findings, .. }) => findings.iter().map(Finding::kind).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_for_nothing_is_refused() {
    let config = RedisConfig::new("redis://127.0.0.1");
    assert!(config.clone().with_wait(0, LONG).is_err());
    assert!(config.clone().with_wait(1, Duration::ZERO).is_err());
    assert!(config.clone().with_wait_aof(0, Duration::ZERO).is_err());
    assert!(config.with_wait_aof(0, LONG).is_ok());
}

#[tokio::test]
async fn fewer_replicas_than_are_waited_for_are_told() {
    let server = RedisServer::start().unwrap();
    let _replica = replica_of(&server);
    let config = |replicas| patient(server.url()).with_wait(replicas, LONG).unwrap();
    let store = RedisStore::connect(config(2)).await.unwrap();
    let mut findings = store.findings().iter();
    let finding = findings.find(|finding| finding.kind() == FindingKind::Replicas).unwrap();
    assert_eq!(finding.severity(), Severity::Loses);
    assert!(finding.seen().contains("1 replicas") && finding.seen().contains("2 are"), "{finding}");

    let store = RedisStore::connect(config(1)).await.unwrap();
    assert!(store.findings().iter().all(|finding| finding.kind() != FindingKind::Replicas));
}

#[tokio::test]
async fn a_user_who_may_not_wait_is_refused() {
    let rules = "app on >pw ~campanile:* ~{* -@all +eval +evalsha +get +mget +set +time";
    let server = RedisServer::builder().config("user", rules).start().unwrap();
    let config = patient(format!("redis://app:pw@{}", server.addr())).with_wait(1, LONG).unwrap();
    assert_eq!(refused(config.clone()).await, [FindingKind::Permission]);

    server.cli(&["ACL", "SETUSER", "app", "+wait"]).unwrap();
    let _replica = replica_of(&server);
    let store = RedisStore::connect(config).await.unwrap();
    acquired(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn a_server_that_cannot_wait_for_disks_is_refused_and_one_that_can_is_waited_for() {
    let server = RedisServer::builder().config("appendfsync", "always").start().unwrap();
    let config = || patient(server.url()).with_wait_aof(0, LONG).unwrap();
    let knows_how = server.cli(&["COMMAND", "INFO", "WAITAOF"]).unwrap() != "(nil)";
    if !knows_how {
        let kinds = refused(config()).await;
        assert!(kinds.contains(&FindingKind::Version), "{kinds:?}");
        return;
    }
    assert_eq!(refused(config()).await, [FindingKind::Persistence]);
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]).unwrap();
    let store = RedisStore::connect(config()).await.unwrap();
    let grant = acquired(&store, &key("key"), 1).await;
    assert_eq!(
        apply(&store, &key("key"), complete(grant, "done")).await.unwrap(),
        Reply::Completed
    );
    assert_eq!(store.shortfalls(), 0);

    let config = patient(server.url()).with_wait_aof(1, Duration::from_millis(50)).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    assert!(apply(&store, &key("no replica"), crate::support::acquire(1)).await.is_err());
}
