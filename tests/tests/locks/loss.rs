//! A process with renewals that do not reach Redis, or replies that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile::policy::OnLost;
use campanile::{BoxError, Guard, IdempotencyError, LostCause, Outcome};
use campanile_test::{Proxy, RedisServer};

use super::{guard, is_locked, process};

/// Starts a process behind a proxy, and one that reaches Redis directly.
async fn cut_off(on_lost: OnLost) -> (RedisServer, Proxy, Guard, Guard) {
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let ours = guard(&process(redis.url_through(proxy.addr())).await, on_lost);
    let other = guard(&process(redis.url()).await, OnLost::Cancel);
    (redis, proxy, ours, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_renewals_are_swallowed_is_lost_before_the_store_gives_it_away() {
    let (_redis, proxy, ours, other) = cut_off(OnLost::Notify).await;
    let run = ours.run("k", async |lock| {
        let lock = lock.unwrap();
        proxy.swallow_requests();
        let lost = lock.lost().await;
        assert_eq!(lost.cause, LostCause::Expired);
        assert!(lock.check().is_err());
        // In the store, the lock is still held: no other handler can have started.
        assert!(is_locked(&other, "k").await);
        proxy.heal().unwrap();
        Ok::<_, BoxError>(())
    });
    assert_eq!(run.await.unwrap(), Outcome::Processed(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn under_cancel_the_handler_is_dropped_when_its_lock_is_lost() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let (_redis, proxy, ours, other) = cut_off(OnLost::Cancel).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(dropped.clone());
    let run = ours.run("k", async |_| {
        let _guard = guard;
        proxy.swallow_requests();
        std::future::pending::<Result<(), BoxError>>().await
    });
    let error = run.await.unwrap_err();
    assert!(dropped.load(Ordering::Acquire));
    let IdempotencyError::LockLost(lost) = IdempotencyError::find(&*error).unwrap() else {
        panic!("not a lost lock: {error}")
    };
    assert_eq!(lost.cause, LostCause::Expired);
    assert!(is_locked(&other, "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_notify_a_result_after_a_takeover_is_lost() {
    let (_redis, proxy, ours, other) = cut_off(OnLost::Notify).await;
    let run = ours.run("k", async |lock| {
        proxy.swallow_requests();
        lock.unwrap().lost().await;
        let taken = loop {
            match other.run("k", async |lock| Ok::<_, BoxError>(lock.unwrap().attempt())).await {
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
async fn under_notify_a_result_without_a_takeover_is_kept_although_the_lock_had_expired() {
    let (redis, proxy, ours, other) = cut_off(OnLost::Notify).await;
    let run = ours.run("k", async |lock| {
        proxy.swallow_requests();
        lock.unwrap().lost().await;
        // Well beyond the lock's expiry in the store, too.
        tokio::time::sleep(2 * super::TTL).await;
        proxy.heal().unwrap();
        Ok::<_, BoxError>(())
    });
    assert_eq!(run.await.unwrap(), Outcome::Processed(()));
    assert!(other.run("k", async |_| Ok::<_, BoxError>(())).await.unwrap().is_duplicate());
    assert_eq!(super::entries(&redis), 1);
}
