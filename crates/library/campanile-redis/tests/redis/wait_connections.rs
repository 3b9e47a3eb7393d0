//! A wait blocks only its own connection.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::StoreErrorKind;
use campanile_redis::RedisStore;
use campanile_test::{RedisServer, eventually};

use crate::support::{acquire, acquire_lock, apply, key, long_timeout, replica_of};
use crate::wait_replicas::store_with_wait;

const LONG: Duration = Duration::from_secs(60);

/// Waits until this many clients of the server are blocked.
fn wait_until_blocked(server: &RedisServer, clients: usize) {
    let expected = format!("blocked_clients:{clients}\r\n");
    let are_blocked =
        || server.cli(&["INFO", "clients"]).unwrap().contains(&expected).then_some(());
    eventually(Duration::from_secs(20), are_blocked).expect("the clients should be blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_are_not_blocked_by_waits() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = store_with_wait(&server, 1, LONG).await;
    let grant = acquire_lock(&store, &key("held"), 1).await;
    replica.pause().unwrap();

    // More calls than there are connections for waits.
    let acquires = (0..20).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { apply(&store, &key(n.to_string()), acquire(2)).await })
    });
    let acquires: Vec<_> = acquires.collect();
    wait_until_blocked(&server, 8);
    let renew = Operation::Renew { grant, ttl: LONG };
    assert_eq!(apply(&store, &key("held"), renew).await.unwrap(), Reply::Renewed);

    replica.resume().unwrap();
    for acquire in acquires {
        let reply = acquire.await.unwrap().unwrap();
        assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn dropped_waits_return_their_connections() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = store_with_wait(&server, 1, LONG).await;
    acquire_lock(&store, &key("first"), 1).await;
    replica.pause().unwrap();
    for n in 0..20 {
        let key = key(n.to_string());
        let mut dropped = pin!(apply(&store, &key, acquire(1)));
        let poll = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending));
        tokio::task::yield_now().await;
    }
    replica.resume().unwrap();
    acquire_lock(&store, &key("last"), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_wait_is_repeated_on_new_connection() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = store_with_wait(&server, 1, LONG).await;
    acquire_lock(&store, &key("first"), 1).await;
    replica.pause().unwrap();
    let blocked_call = tokio::spawn({
        let store = store.clone();
        async move { apply(&store, &key("key"), acquire(1)).await }
    });
    wait_until_blocked(&server, 1);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    wait_until_blocked(&server, 1);
    replica.resume().unwrap();
    let reply = blocked_call.await.unwrap().unwrap();
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_wait_grants_no_lock() {
    let mut server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let config = long_timeout(server.url()).with_command_timeout(Duration::from_millis(500));
    let config = config.with_wait(1, Duration::from_secs(10));
    let store = RedisStore::connect(config).await.unwrap();
    replica.pause().unwrap();
    let blocked_call = tokio::spawn(async move { apply(&store, &key("key"), acquire(1)).await });
    wait_until_blocked(&server, 1);
    server.pause().unwrap();
    assert_eq!(blocked_call.await.unwrap().unwrap_err().kind(), StoreErrorKind::Timeout);
}
