//! A server with a clock that is set ahead or back.

use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Grant, Operation, Reply, Retention};
use campanile_redis::RedisStore;
use campanile_test::{RedisServer, eventually};

use crate::server_clock::ServerClock;
use crate::support::{acquire, acquire_lock, apply, complete, key, long_timeout};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

struct Server {
    redis: RedisServer,
    clock: ServerClock,
}

impl Server {
    async fn start() -> (Self, RedisStore) {
        let clock = ServerClock::new();
        let redis = clock.give_to(RedisServer::builder()).start().unwrap();
        let store = RedisStore::connect(long_timeout(redis.url())).await.unwrap();
        (Self { redis, clock }, store)
    }

    /// Moves the clock from `before` seconds ahead of the machine's to `after`. The server may have
    /// read its clock a moment before, so this waits until it has read the new one.
    fn step_clock(&self, before: i64, after: i64) {
        let middle = self.seconds() + (after - before) / 2;
        self.clock.set(after);
        let has_moved = || ((self.seconds() > middle) == (after > before)).then_some(());
        eventually(Duration::from_secs(30), has_moved).expect("the clock should move");
    }

    fn seconds(&self) -> i64 {
        self.redis.cli(&["TIME"]).unwrap().lines().next().unwrap().parse().unwrap()
    }
}

fn fail(grant: Grant, delay: Duration) -> Operation {
    Operation::Fail { grant, delay, last: false, error: "no".into() }
}

#[tokio::test]
async fn clock_step_ahead_ends_lock_and_refuses_its_holder() {
    let (server, store) = Server::start().await;
    let (held, waiting) = (key("held"), key("waiting"));
    let first = acquire_lock(&store, &held, 1).await;
    let failed = acquire_lock(&store, &waiting, 1).await;
    apply(&store, &waiting, fail(failed, MAX_BACKOFF)).await.unwrap();
    // A step of less than the TTL, which is 30 s, shortens the lock.
    server.step_clock(0, 10);
    let reply = apply(&store, &held, acquire(2)).await.unwrap();
    let Reply::Locked { remaining } = reply else { panic!("{reply:?}") };
    assert!(remaining <= Duration::from_secs(20), "{remaining:?}");

    server.step_clock(10, 2 * HOUR);
    let second = acquire_lock(&store, &held, 2).await;
    assert!(second.token > first.token);
    let ttl = Duration::from_secs(30);
    for late in [Operation::Renew { grant: first, ttl }, complete(first, "late")] {
        assert_eq!(apply(&store, &held, late).await.unwrap(), Reply::Lost);
    }
    let reply = apply(&store, &held, complete(second, "done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
    // The backoff, of a day, has two hours less.
    let reply = apply(&store, &waiting, acquire(2)).await.unwrap();
    let Reply::BackingOff { remaining, .. } = reply else { panic!("{reply:?}") };
    assert!(remaining <= MAX_BACKOFF - Duration::from_secs(2 * HOUR as u64), "{remaining:?}");
    server.step_clock(2 * HOUR, DAY);
    acquire_lock(&store, &waiting, 2).await;
}

#[tokio::test]
async fn clock_step_ahead_ends_retention_and_tokens_rise() {
    let (server, store) = Server::start().await;
    let key = key("done");
    let before = acquire_lock(&store, &key, 1).await;
    apply(&store, &key, complete(before, "done")).await.unwrap();
    let retention = Retention::default().completed.as_secs() as i64;
    server.step_clock(0, retention - HOUR);
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { .. }), "{reply:?}");
    server.step_clock(retention - HOUR, retention + HOUR);
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    let Reply::Acquired { token, attempt: 1, .. } = reply else { panic!("{reply:?}") };
    assert!(token > before.token);
}

#[tokio::test]
async fn clock_set_back_bounds_locks_and_repeats_no_token() {
    let (server, store) = Server::start().await;
    let (held, waiting) = (key("held"), key("waiting"));
    let before = acquire_lock(&store, &held, 1).await;
    let failed = acquire_lock(&store, &waiting, 1).await;
    apply(&store, &waiting, fail(failed, Duration::from_secs(1))).await.unwrap();
    server.step_clock(0, -7 * DAY);
    let reply = apply(&store, &held, acquire(2)).await.unwrap();
    assert_eq!(reply, Reply::Locked { remaining: MAX_LOCK_TTL });
    let reply = apply(&store, &waiting, acquire(2)).await.unwrap();
    let Reply::BackingOff { remaining, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(remaining, MAX_BACKOFF);
    let release = Operation::Release { grant: before, ran: true };
    assert_eq!(apply(&store, &held, release).await.unwrap(), Reply::Released);
    let after = acquire_lock(&store, &held, 2).await;
    assert!(after.token > before.token);
    let reply = apply(&store, &held, complete(before, "late")).await.unwrap();
    assert_eq!(reply, Reply::Lost);
}
