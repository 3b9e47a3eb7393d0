//! Connections that something on the way has dropped silently.

use campanile_core::Reply;
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::{Proxy, RedisServer};

use crate::support::{acquire, acquire_lock, apply, complete, key, short_timeout};

#[tokio::test]
async fn dropped_connections_cost_one_timeout() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let config = short_timeout(server.url_through(proxy.addr()));
    let store = RedisStore::connect(config).await.unwrap();
    let keeper = store.for_renewals();
    for round in 0..3 {
        let held = acquire_lock(&store, &key(format!("held {round}")), 1).await;
        acquire_lock(&keeper, &key(format!("keeper {round}")), 1).await;
        proxy.forget_connections();
        let error = apply(&store, &key(format!("a {round}")), acquire(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        // Its connection was dropped also, and is replaced without waiting for another timeout.
        let (held_key, completed) = (key(format!("held {round}")), complete(held, "done"));
        assert_eq!(apply(&keeper, &held_key, completed).await.unwrap(), Reply::Completed);
        let reply = apply(&store, &key(format!("b {round}")), acquire(1)).await.unwrap();
        assert!(matches!(reply, Reply::Acquired { .. }), "{reply:?}");
    }
}
