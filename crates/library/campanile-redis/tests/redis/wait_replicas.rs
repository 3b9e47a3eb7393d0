//! Locks and completions that wait for replicas.

use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::RedisServer;

use crate::support::{
    acquire, acquire_lock, apply, chain, command, complete, key, long_timeout, replica_of,
};

/// Longer than any test here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

pub(crate) async fn store_with_wait(
    server: &RedisServer,
    replicas: u32,
    timeout: Duration,
) -> RedisStore {
    let config = long_timeout(server.url()).with_wait(replicas, timeout);
    RedisStore::connect(config).await.unwrap()
}

#[tokio::test]
async fn answered_writes_are_on_the_replica() {
    let mut primary = RedisServer::start().unwrap();
    let replica = replica_of(&primary);
    let store = store_with_wait(&primary, 1, LONG).await;
    let grant = acquire_lock(&store, &key("done"), 1).await;
    assert_eq!(
        apply(&store, &key("done"), complete(grant, "done")).await.unwrap(),
        Reply::Completed
    );
    let held = acquire_lock(&store, &key("held"), 1).await;
    primary.kill().unwrap();
    replica.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();

    let store = RedisStore::connect(long_timeout(replica.url())).await.unwrap();
    let reply = apply(&store, &key("done"), acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    let renew = Operation::Renew { grant: held, ttl: LONG };
    assert_eq!(apply(&store, &key("held"), renew).await.unwrap(), Reply::Renewed);
    assert_eq!(store.shortfalls(), 0);
}

#[tokio::test]
async fn unreplicated_lock_is_refused_and_cancel_returns_attempt() {
    let server = RedisServer::start().unwrap();
    let store = store_with_wait(&server, 1, SHORT).await;
    let key = key("key");
    let error = apply(&store, &key, acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("0 of 1 replicas"), "{}", chain(&error));
    // As the lock keeper does when an acquire fails.
    let cancel = Operation::Cancel { owner: crate::support::owner(1) };
    assert_eq!(apply(&store, &key, cancel).await.unwrap(), Reply::Released);

    let _replica = replica_of(&server);
    let store = store_with_wait(&server, 1, LONG).await;
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test]
async fn unreplicated_completion_is_acknowledged_and_counted() {
    let server = RedisServer::start().unwrap();
    let (plain, store) = (
        RedisStore::connect(long_timeout(server.url())).await.unwrap(),
        store_with_wait(&server, 1, SHORT).await,
    );
    let keys = ["a", "b", "c"].map(key);
    let mut batch = Vec::new();
    for key in &keys {
        batch.push(command(key, complete(acquire_lock(&plain, key, 1).await, "done")));
    }
    for answer in store.apply_batch(batch.clone()).await {
        assert_eq!(answer.unwrap().reply, Reply::Completed);
    }
    assert_eq!((store.shortfalls(), plain.shortfalls()), (3, 0));

    let _replica = replica_of(&server);
    let store = store_with_wait(&server, 1, LONG).await;
    store.apply_batch(batch).await;
    assert_eq!(store.shortfalls(), 0, "the replica should have them now");
}

#[tokio::test]
async fn repeated_completion_waits_although_it_writes_nothing() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let plain = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let store = store_with_wait(&server, 1, SHORT).await;
    let key = key("key");
    let grant = acquire_lock(&plain, &key, 1).await;
    replica.pause().unwrap();
    // As if its answer had been lost.
    assert_eq!(apply(&plain, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    assert_eq!(store.shortfalls(), 1);
    replica.resume().unwrap();
}

#[tokio::test]
async fn other_replies_do_not_wait_for_replicas() {
    let server = RedisServer::start().unwrap();
    let plain = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let store = store_with_wait(&server, 1, LONG).await;
    let [held, done, failed] = ["held", "done", "failed"].map(key);
    let grant = acquire_lock(&plain, &held, 1).await;
    let of_done = acquire_lock(&plain, &done, 1).await;
    apply(&plain, &done, complete(of_done, "done")).await.unwrap();
    let of_failed = acquire_lock(&plain, &failed, 1).await;
    let fail =
        Operation::Fail { grant: of_failed, delay: LONG, last: false, error: "error".into() };

    let answers = async {
        assert!(matches!(apply(&store, &held, acquire(2)).await.unwrap(), Reply::Locked { .. }));
        assert!(matches!(apply(&store, &done, acquire(2)).await.unwrap(), Reply::Duplicate { .. }));
        let renew = Operation::Renew { grant, ttl: LONG };
        assert_eq!(apply(&store, &held, renew).await.unwrap(), Reply::Renewed);
        assert_eq!(apply(&store, &failed, fail).await.unwrap(), Reply::Retrying);
        let cancel = Operation::Cancel { owner: grant.owner };
        assert_eq!(apply(&store, &held, cancel).await.unwrap(), Reply::Released);
    };
    tokio::time::timeout(LONG / 2, answers).await.expect("should not wait");
}

#[tokio::test]
async fn unreplicated_lock_is_refused_alone_in_batch() {
    let server = RedisServer::start().unwrap();
    let plain = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let store = store_with_wait(&server, 1, SHORT).await;
    let [held, free, done] = ["held", "free", "done"].map(key);
    acquire_lock(&plain, &held, 1).await;
    let grant = acquire_lock(&plain, &done, 1).await;
    let batch = vec![
        command(&held, acquire(2)),
        command(&free, acquire(3)),
        command(&done, complete(grant, "done")),
    ];
    let answers = store.apply_batch(batch).await;
    assert!(matches!(answers[0].as_ref().unwrap().reply, Reply::Locked { .. }), "{answers:?}");
    assert_eq!(answers[1].as_ref().unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(answers[2].as_ref().unwrap().reply, Reply::Completed);
    assert_eq!(store.shortfalls(), 1);
}
