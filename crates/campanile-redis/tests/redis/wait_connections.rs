//! A wait blocks only its own connection.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::StoreErrorKind;
use campanile_redis::RedisStore;
use campanile_test::{RedisServer, eventually};

use crate::support::{acquire, acquired, apply, key, patient, replica_of};
use crate::wait_replicas::waiting;

const LONG: Duration = Duration::from_secs(60);

/// Waits until this many clients of the server are blocked.
fn until_blocked(server: &RedisServer, clients: usize) {
    let expected = format!("blocked_clients:{clients}\r\n");
    let is_so = || server.cli(&["INFO", "clients"]).unwrap().contains(&expected).then_some(());
    eventually(Duration::from_secs(20), is_so).expect("the clients should be blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_pass_those_who_wait() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = waiting(&server, 1, LONG).await;
    let grant = acquired(&store, &key("held"), 1).await;
    replica.pause().unwrap();

    // More calls than there are connections for waits.
    let acquires = (0..20).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { apply(&store, &key(n.to_string()), acquire(2)).await })
    });
    let acquires: Vec<_> = acquires.collect();
    until_blocked(&server, 8);
    let renew = Operation::Renew { grant, ttl: LONG };
    assert_eq!(apply(&store, &key("held"), renew).await.unwrap(), Reply::Renewed);

    replica.resume().unwrap();
    for acquire in acquires {
        let reply = acquire.await.unwrap().unwrap();
        assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn calls_that_are_dropped_while_they_wait_leave_their_connections_to_others() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = waiting(&server, 1, LONG).await;
    acquired(&store, &key("first"), 1).await;
    replica.pause().unwrap();
    for n in 0..20 {
        let key = key(n.to_string());
        let mut dropped = pin!(apply(&store, &key, acquire(1)));
        let poll = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending));
        tokio::task::yield_now().await;
    }
    replica.resume().unwrap();
    acquired(&store, &key("last"), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_connection_breaks_is_repeated_over_another() {
    let server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let store = waiting(&server, 1, LONG).await;
    acquired(&store, &key("first"), 1).await;
    replica.pause().unwrap();
    let waits = tokio::spawn({
        let store = store.clone();
        async move { apply(&store, &key("key"), acquire(1)).await }
    });
    until_blocked(&server, 1);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    until_blocked(&server, 1);
    replica.resume().unwrap();
    let reply = waits.await.unwrap().unwrap();
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_granted_by_a_call_whose_time_is_over_while_it_waits() {
    let mut server = RedisServer::start().unwrap();
    let mut replica = replica_of(&server);
    let config = patient(server.url()).with_command_timeout(Duration::from_millis(500)).unwrap();
    let config = config.with_wait(1, Duration::from_secs(4)).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    replica.pause().unwrap();
    let waits = tokio::spawn(async move { apply(&store, &key("key"), acquire(1)).await });
    until_blocked(&server, 1);
    server.pause().unwrap();
    assert_eq!(waits.await.unwrap().unwrap_err().kind(), StoreErrorKind::Timeout);
}
