//! Handlers that run longer than their lock's time to live.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile::policy::OnLost;
use campanile::{BoxError, Outcome};
use campanile_test::RedisServer;

use super::{entries, guard, is_locked, process};

const WORK: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_handler_of_5_s_keeps_its_lock_of_1_s_and_its_token() {
    let redis = RedisServer::start().unwrap();
    let ours = guard(&process(redis.url()).await, OnLost::Cancel);
    let other = guard(&process(redis.url()).await, OnLost::Cancel);
    let work = ours.run("k", async |lock| {
        let lock = lock.unwrap();
        let token = lock.token();
        let mut looks = 0;
        let done = tokio::time::sleep(WORK);
        tokio::pin!(done);
        // Another process tries to acquire the key all the time.
        while tokio::time::timeout(Duration::from_millis(100), &mut done).await.is_err() {
            assert!(is_locked(&other, "k").await);
            lock.check()?;
            looks += 1;
        }
        assert_eq!((lock.token(), lock.attempt()), (token, 1));
        Ok::<_, BoxError>(looks)
    });
    let Outcome::Processed(looks) = work.await.unwrap() else { panic!("not processed") };
    assert!(looks >= 20, "only {looks} checks");
    assert_eq!(entries(&redis), 1);
    let again = other.run("k", async |_| Ok::<_, BoxError>(0)).await.unwrap();
    let Outcome::Duplicate(first) = again else { panic!("not a duplicate") };
    assert_eq!(first.attempts, 1);
}

#[test]
fn a_handler_that_blocks_the_only_thread_of_its_runtime_keeps_its_lock() {
    let redis = RedisServer::start().unwrap();
    let url = redis.url();
    let (begun, has_begun) = mpsc::channel();
    let blocked = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ours = guard(&process(url).await, OnLost::Cancel);
            ours.run("k", async |lock| {
                begun.send(()).unwrap();
                thread::sleep(WORK);
                lock.unwrap().check()?;
                Ok::<_, BoxError>(())
            })
            .await
        })
    });
    has_begun.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let looks = runtime.block_on(async {
        let other = guard(&process(redis.url()).await, OnLost::Cancel);
        let mut looks = 0;
        while !blocked.is_finished() && is_locked(&other, "k").await {
            looks += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        looks
    });
    // The last check found a duplicate, so the lock was held until the handler finished.
    assert_eq!(blocked.join().unwrap().unwrap(), Outcome::Processed(()));
    assert!(looks >= 20, "only {looks} checks");
    assert_eq!(entries(&redis), 1);
}
