//! A command gets the same answer when it is repeated because its reply was lost.

use std::time::Duration;

use campanile_core::{BoxError, Entry, Grant, Operation, Reply, State, StoreKey};
use campanile_idempotency::{LockKeeper, Runner, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::{Proxy, RedisServer, eventually};

use crate::support::{
    NAMESPACE, acquire, acquire_lock, apply, apply_with_retry, chain, complete, grant, key,
    long_timeout, raw_connection, redis_key, short_timeout,
};

struct ProxiedStore {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
}

impl ProxiedStore {
    async fn new() -> Self {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let config = short_timeout(server.url_through(proxy.addr()));
        let store = RedisStore::connect(config).await.unwrap();
        Self { server, proxy, store }
    }

    fn stored(&self, key: &StoreKey) -> Option<Vec<u8>> {
        redis::cmd("GET").arg(redis_key(key)).query(&mut raw_connection(&self.server)).unwrap()
    }

    /// Sends the command twice and loses the reply to the first. Returns the reply to the second.
    async fn repeat_after_lost_reply(&self, key: &StoreKey, operation: Operation) -> Reply {
        // Caches the script on the server; the reply that is lost would otherwise be `NOSCRIPT`.
        apply_with_retry(&self.store, &crate::support::key("other"), operation.clone()).await;
        let before = self.stored(key);
        self.proxy.swallow_replies();
        let error = apply(&self.store, key, operation.clone()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        let applied = || (self.stored(key) != before).then_some(());
        eventually(Duration::from_secs(10), applied).expect("the command should be applied");
        self.proxy.heal().unwrap();
        apply_with_retry(&self.store, key, operation).await
    }
}

#[tokio::test]
async fn repeated_acquire_after_lost_reply_gets_same_grant() {
    let proxied = ProxiedStore::new().await;
    let key = key("key");
    let Reply::Acquired { token, attempt, .. } =
        proxied.repeat_after_lost_reply(&key, acquire(1)).await
    else {
        panic!("the acquire should find its own lock");
    };
    assert_eq!(attempt, 1);
    let stored = proxied.stored(&key).unwrap();
    assert_eq!(stored[8..16], token.get().to_be_bytes());
}

#[tokio::test]
async fn repeated_settle_after_lost_reply_gets_same_reply() {
    type Settle = fn(Grant) -> Operation;
    let settles: [(Settle, Reply); 6] = [
        (|grant| Operation::Renew { grant, ttl: Duration::from_secs(60) }, Reply::Renewed),
        (|grant| complete(grant, "done"), Reply::Completed),
        (
            |grant| Operation::Fail {
                grant,
                delay: Duration::ZERO,
                last: false,
                error: "error".into(),
            },
            Reply::Retrying,
        ),
        (|grant| Operation::Release { grant, ran: true }, Reply::Released),
        (|grant| Operation::Cancel { owner: grant.owner }, Reply::Released),
        (|grant| Operation::GiveUp { grant, reason: "reason".into() }, Reply::GivenUp),
    ];
    let proxied = ProxiedStore::new().await;
    for (settle, expected) in settles {
        let name = settle(grant(campanile_core::FencingToken::ZERO, 1)).name();
        let key = key(name);
        let grant = acquire_lock(&proxied.store, &key, 1).await;
        let reply = proxied.repeat_after_lost_reply(&key, settle(grant)).await;
        assert_eq!(reply, expected, "{name}");
        let interrupts = proxied.stored(&key).unwrap()[4];
        assert_eq!(interrupts, u8::from(name == "release"), "{name} counts once");
    }
}

#[tokio::test]
async fn repeated_redrive_after_lost_reply_gets_same_reply() {
    let proxied = ProxiedStore::new().await;
    let key = key("key");
    let grant = acquire_lock(&proxied.store, &key, 1).await;
    let give_up = Operation::GiveUp { grant, reason: "reason".into() };
    assert_eq!(apply_with_retry(&proxied.store, &key, give_up).await, Reply::GivenUp);
    let redrive = Operation::Redrive { token: grant.token, force: false };
    assert_eq!(proxied.repeat_after_lost_reply(&key, redrive).await, Reply::Reopened);
}

#[tokio::test]
async fn lost_acquire_is_cancelled_even_if_retry_was_not_sent() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = RedisStore::connect(long_timeout(server.url_through(proxy.addr()))).await.unwrap();
    let keeper = LockKeeper::new(store).unwrap();
    let runner = Runner::new(&keeper, NAMESPACE).unwrap();
    let run = async |id: &'static str| runner.run(id, async |_| Ok::<_, BoxError>(())).await;
    // Caches the script on the server; the reply that is lost would otherwise be `NOSCRIPT`.
    run("other").await.unwrap();
    let entry = || {
        let stored: Option<Vec<u8>> = redis::cmd("GET")
            .arg(redis_key(&key("key")))
            .query(&mut raw_connection(&server))
            .unwrap();
        stored.map(|bytes| Entry::from_bytes(&bytes).unwrap())
    };
    proxy.swallow_replies();
    let cut_off = async {
        while entry().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Breaks the connection, and no other can be opened.
        proxy.cut();
    };
    let (refused, ()) = tokio::join!(run("key"), cut_off);
    assert!(chain(&*refused.unwrap_err()).contains("refused"));
    assert_eq!(entry().unwrap().state(), State::Processing);
    proxy.heal().unwrap();
    assert!(keeper.shutdown(Duration::from_secs(60)).await.settled);
    let entry = entry().unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test]
async fn unsent_acquire_needs_no_cancel() {
    let proxied = ProxiedStore::new().await;
    let keeper = LockKeeper::new(proxied.store.clone()).unwrap();
    let runner = Runner::new(&keeper, NAMESPACE).unwrap();
    proxied.proxy.cut();
    for id in 0..100_u32 {
        let refused = runner.run(id, async |_| Ok::<_, BoxError>(())).await.unwrap_err();
        assert!(chain(&*refused).contains("refused"));
    }
    // The server is still unreachable.
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}
