//! A command gets the same answer when it is repeated because its reply was lost.

use std::time::Duration;

use campanile_core::{BoxError, Entry, Grant, Operation, Reply, State, StoreKey};
use campanile_idempotency::{Guard, LockKeeper, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::{Proxy, RedisServer, eventually};

use crate::support::{
    NAMESPACE, acquire, acquired, apply, chain, complete, grant, impatient, insist, key, patient,
    raw, redis_key,
};

struct Line {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
}

impl Line {
    async fn new() -> Self {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let config = impatient(server.url_through(proxy.addr()));
        let store = RedisStore::connect(config).await.unwrap();
        Self { server, proxy, store }
    }

    fn stored(&self, key: &StoreKey) -> Option<Vec<u8>> {
        redis::cmd("GET").arg(redis_key(key)).query(&mut raw(&self.server)).unwrap()
    }

    /// Sends the command twice and loses the reply to the first. Returns the reply to the second.
    async fn lost_and_repeated(&self, key: &StoreKey, operation: Operation) -> Reply {
        // Caches the script on the server; the reply that is lost would otherwise be `NOSCRIPT`.
        insist(&self.store, &crate::support::key("other"), operation.clone()).await;
        let before = self.stored(key);
        self.proxy.swallow_replies();
        let error = apply(&self.store, key, operation.clone()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        let applied = || (self.stored(key) != before).then_some(());
        eventually(Duration::from_secs(10), applied).expect("the command should be applied");
        self.proxy.heal().unwrap();
        insist(&self.store, key, operation).await
    }
}

#[tokio::test]
async fn an_acquire_whose_reply_was_lost_is_answered_with_the_same_grant() {
    let line = Line::new().await;
    let key = key("key");
    let Reply::Acquired { token, attempt } = line.lost_and_repeated(&key, acquire(1)).await else {
        panic!("the acquire should find its own lock");
    };
    assert_eq!(attempt, 1);
    let stored = line.stored(&key).unwrap();
    assert_eq!(stored[8..16], token.get().to_be_bytes());
}

#[tokio::test]
async fn a_settling_command_whose_reply_was_lost_is_answered_the_same() {
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
        (|grant| Operation::Reject { grant, reason: "reason".into() }, Reply::Rejected),
    ];
    let line = Line::new().await;
    for (settle, expected) in settles {
        let name = settle(grant(campanile_core::FencingToken::ZERO, 1)).name();
        let key = key(name);
        let grant = acquired(&line.store, &key, 1).await;
        let reply = line.lost_and_repeated(&key, settle(grant)).await;
        assert_eq!(reply, expected, "{name}");
        let interrupts = line.stored(&key).unwrap()[4];
        assert_eq!(interrupts, u8::from(name == "release"), "{name} counts once");
    }
}

#[tokio::test]
async fn a_redrive_whose_reply_was_lost_is_answered_the_same() {
    let line = Line::new().await;
    let key = key("key");
    let grant = acquired(&line.store, &key, 1).await;
    let reject = Operation::Reject { grant, reason: "reason".into() };
    assert_eq!(insist(&line.store, &key, reject).await, Reply::Rejected);
    let redrive = Operation::Redrive { token: grant.token, force: false };
    assert_eq!(line.lost_and_repeated(&key, redrive).await, Reply::Reopened);
}

#[tokio::test]
async fn an_acquire_whose_reply_was_lost_is_cancelled_although_the_next_try_was_not_sent() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = RedisStore::connect(patient(server.url_through(proxy.addr()))).await.unwrap();
    let keeper = LockKeeper::new(store).unwrap();
    let guard = Guard::new(&keeper, NAMESPACE).unwrap();
    let run = async |id: &'static str| guard.run(id, async |_| Ok::<_, BoxError>(())).await;
    // Caches the script on the server; the reply that is lost would otherwise be `NOSCRIPT`.
    run("other").await.unwrap();
    let entry = || {
        let stored: Option<Vec<u8>> =
            redis::cmd("GET").arg(redis_key(&key("key"))).query(&mut raw(&server)).unwrap();
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
async fn an_acquire_that_was_not_sent_leaves_nothing_to_be_cancelled() {
    let line = Line::new().await;
    let keeper = LockKeeper::new(line.store.clone()).unwrap();
    let guard = Guard::new(&keeper, NAMESPACE).unwrap();
    line.proxy.cut();
    for id in 0..100_u32 {
        let refused = guard.run(id, async |_| Ok::<_, BoxError>(())).await.unwrap_err();
        assert!(chain(&*refused).contains("refused"));
    }
    // The server is still unreachable.
    assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
}
