//! A server that is restarted, down or hanging.

use std::time::Duration;

use campanile_core::Reply;
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::RedisServer;

use crate::support::{
    acquire, acquired, apply, chain, command, complete, impatient, insist, key, patient,
    server_and_store, timed,
};

/// The command timeout of the impatient store, with a margin of many times that for a busy machine.
/// Well below any other timeout.
const IN_TIME: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_restart_shows_in_no_error() {
    let mut server = RedisServer::builder().append_only(true).start().unwrap();
    let store = RedisStore::connect(patient(server.url())).await.unwrap();
    let keys: Vec<_> = (0..3).map(|n| key(n.to_string())).collect();
    for key in &keys {
        let grant = acquired(&store, key, 1).await;
        // Done only once the append-only file has the acquire.
        server.cli(&["CONFIG", "SET", "appendfsync", "always"]).unwrap();
        server.restart().unwrap();
        assert_eq!(apply(&store, key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    }
    server.restart().unwrap();
    let batch = keys.iter().map(|key| command(key, acquire(2))).collect();
    for reply in crate::support::replies(store.apply_batch(batch).await) {
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_at_once_and_found_when_it_is_back() {
    let (mut server, store) = server_and_store().await;
    acquired(&store, &key("before"), 1).await;
    server.kill().unwrap();
    for _ in 0..3 {
        let error = apply(&store, &key("while"), acquire(1)).await.unwrap_err();
        // Not a timeout, which takes a minute in this store.
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains(&server.addr().to_string()), "{}", chain(&error));
    }
    server.restart().unwrap();
    acquired(&store, &key("after"), 1).await;
}

#[tokio::test]
async fn a_call_to_a_server_that_hangs_ends_in_time() {
    let mut server = RedisServer::start().unwrap();
    let config = || impatient(server.url());
    let used = RedisStore::connect(config()).await.unwrap();
    let grant = acquired(&used, &key("held"), 1).await;
    // One store has a connection; the other must open one while the server hangs.
    let unused = RedisStore::connect(config()).await.unwrap();

    server.pause().unwrap();
    for store in [&used, &unused, &used] {
        let batch =
            vec![command(&key("held"), complete(grant, "done")), command(&key("b"), acquire(1))];
        let (took, answers) = timed(store.apply_batch(batch)).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
        }
        assert!(took < IN_TIME, "{took:?}");
    }
    server.resume().unwrap();
    for store in [&used, &unused] {
        let reply = insist(store, &key("held"), complete(grant, "done")).await;
        assert_eq!(reply, Reply::Completed);
    }
}

#[tokio::test]
async fn several_calls_that_wait_for_a_connection_end_in_time() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::connect(impatient(server.url())).await.unwrap();
    server.pause().unwrap();
    let keys: Vec<_> = (0..4).map(|n| key(n.to_string())).collect();
    let calls = keys.iter().map(|key| apply(&store, key, acquire(1)));
    let (took, answers) = timed(futures_util::future::join_all(calls)).await;
    for answer in answers {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
    assert!(took < IN_TIME, "{took:?}: they wait side by side");
}
