//! A server that is restarted, down or hanging.

use campanile_core::Reply;
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::RedisServer;

use crate::support::{
    MAX_CALL_TIME, acquire, acquire_lock, apply, apply_with_retry, chain, command, complete, key,
    long_timeout, server_and_store, short_timeout, timed,
};

#[tokio::test]
async fn server_restart_causes_no_error() {
    let mut server = RedisServer::builder().append_only(true).start().unwrap();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let keys: Vec<_> = (0..3).map(|n| key(n.to_string())).collect();
    for key in &keys {
        let grant = acquire_lock(&store, key, 1).await;
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
async fn killed_server_fails_at_once_and_recovers_on_restart() {
    let (mut server, store) = server_and_store().await;
    acquire_lock(&store, &key("before"), 1).await;
    server.kill().unwrap();
    for _ in 0..3 {
        let error = apply(&store, &key("while"), acquire(1)).await.unwrap_err();
        // Not a timeout, which takes a minute in this store.
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains(&server.addr().to_string()), "{}", chain(&error));
    }
    server.restart().unwrap();
    acquire_lock(&store, &key("after"), 1).await;
}

#[tokio::test]
async fn call_to_hung_server_times_out() {
    let mut server = RedisServer::start().unwrap();
    let config = || short_timeout(server.url());
    let used = RedisStore::connect(config()).await.unwrap();
    let grant = acquire_lock(&used, &key("held"), 1).await;
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
        assert!(took < MAX_CALL_TIME, "{took:?}");
    }
    server.resume().unwrap();
    for store in [&used, &unused] {
        let reply = apply_with_retry(store, &key("held"), complete(grant, "done")).await;
        assert_eq!(reply, Reply::Completed);
    }
}

#[tokio::test]
async fn concurrent_calls_without_connection_time_out_together() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::connect(short_timeout(server.url())).await.unwrap();
    server.pause().unwrap();
    let keys: Vec<_> = (0..4).map(|n| key(n.to_string())).collect();
    let calls = keys.iter().map(|key| apply(&store, key, acquire(1)));
    let (took, answers) = timed(futures_util::future::join_all(calls)).await;
    for answer in answers {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
    assert!(took < MAX_CALL_TIME, "{took:?}: they wait side by side");
}
