//! A process with renewals that do not reach Redis, or replies that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile::policy::OnLost;
use campanile::{BoxError, IdempotencyError, Outcome, Runner, lock::LostCause};
use campanile_test::{Proxy, RedisServer};
use tokio::time::Instant;

use super::{LOCK_TTL, is_locked, runner, start_keeper};

/// Starts a process behind a proxy, and one that reaches Redis directly.
async fn guards_behind_proxy(on_lost: OnLost) -> (RedisServer, Proxy, Runner, Runner) {
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let holder = runner(&start_keeper(redis.url_through(proxy.addr())).await, on_lost);
    let contender = runner(&start_keeper(redis.url()).await, OnLost::Cancel);
    (redis, proxy, holder, contender)
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_without_renewals_is_lost_before_store_expiry() {
    let (_redis, proxy, holder, contender) = guards_behind_proxy(OnLost::Notify).await;
    let (requested, has_expired) = (Instant::now(), AtomicBool::new(false));
    let run = holder.run("k", async |lock| {
        let lock = lock.unwrap();
        proxy.swallow_requests();
        let lost = lock.lost().await;
        assert_eq!(lost.cause, LostCause::Expired);
        assert!(lock.check().is_err());
        // In the store, the lock is still held: no other handler can have started.
        let is_locked = is_locked(&contender, "k").await;
        assert!(is_locked || is_slow(requested));
        has_expired.store(!is_locked, Ordering::Release);
        proxy.heal().unwrap();
        Ok::<_, BoxError>(())
    });
    let run = run.await;
    if !has_expired.load(Ordering::Acquire) {
        assert_eq!(run.unwrap(), Outcome::Processed(()));
    }
}

/// Checks whether the lock that was requested at this time may have expired in the store, too, because
/// the machine stood still.
fn is_slow(requested: Instant) -> bool {
    requested.elapsed() >= LOCK_TTL
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_policy_drops_handler_when_lock_is_lost() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let (_redis, proxy, holder, contender) = guards_behind_proxy(OnLost::Cancel).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let runner = Dropped(dropped.clone());
    let requested = Instant::now();
    let run = holder.run("k", async |_| {
        let _guard = runner;
        proxy.swallow_requests();
        std::future::pending::<Result<(), BoxError>>().await
    });
    let error = run.await.unwrap_err();
    assert!(dropped.load(Ordering::Acquire));
    let IdempotencyError::LockLost(lost) = IdempotencyError::find(&*error).unwrap() else {
        panic!("not a lost lock: {error}")
    };
    assert_eq!(lost.cause, LostCause::Expired);
    assert!(is_locked(&contender, "k").await || is_slow(requested));
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_policy_loses_result_after_takeover() {
    let (_redis, proxy, holder, contender) = guards_behind_proxy(OnLost::Notify).await;
    let run = holder.run("k", async |lock| {
        proxy.swallow_requests();
        lock.unwrap().lost().await;
        let taken = loop {
            match contender.run("k", async |lock| Ok::<_, BoxError>(lock.unwrap().attempt())).await
            {
                Ok(outcome) => break outcome,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        assert_eq!(taken, Outcome::Processed(2));
        proxy.heal().unwrap();
        Ok::<_, BoxError>(0)
    });
    let error = run.await.unwrap_err();
    let IdempotencyError::LockLost(lost) = IdempotencyError::find(&*error).unwrap() else {
        panic!("not a lost lock: {error}")
    };
    assert_eq!(lost.cause, LostCause::Superseded);
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_policy_keeps_result_of_expired_lock_without_takeover() {
    let (redis, proxy, holder, contender) = guards_behind_proxy(OnLost::Notify).await;
    let run = holder.run("k", async |lock| {
        proxy.swallow_requests();
        lock.unwrap().lost().await;
        // Well beyond the lock's expiry in the store, too.
        tokio::time::sleep(LOCK_TTL).await;
        proxy.heal().unwrap();
        Ok::<_, BoxError>(())
    });
    assert_eq!(run.await.unwrap(), Outcome::Processed(()));
    assert!(contender.run("k", async |_| Ok::<_, BoxError>(())).await.unwrap().is_duplicate());
    assert_eq!(super::count_entries(&redis), 1);
}
