//! Handlers that run longer than their lock's time to live.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile::policy::OnLost;
use campanile::{BoxError, Outcome};
use campanile_test::RedisServer;

use super::{count_entries, is_locked, runner, start_keeper};

const WORK_DURATION: Duration = Duration::from_secs(15);

#[tokio::test]
async fn handler_longer_than_lock_ttl_keeps_lock_and_token() {
    let redis = RedisServer::start().unwrap();
    let holder = runner(&start_keeper(redis.url()).await, OnLost::Cancel);
    let contender = runner(&start_keeper(redis.url()).await, OnLost::Cancel);
    let work = holder.run("k", async |lock| {
        let lock = lock.unwrap();
        let token = lock.token();
        let mut checks = 0;
        let done = tokio::time::sleep(WORK_DURATION);
        tokio::pin!(done);
        // Another process tries to acquire the key all the time.
        while tokio::time::timeout(Duration::from_millis(100), &mut done).await.is_err() {
            assert!(is_locked(&contender, "k").await);
            lock.check()?;
            checks += 1;
        }
        assert_eq!((lock.token(), lock.attempt()), (token, 1));
        Ok::<_, BoxError>(checks)
    });
    let Outcome::Processed(checks) = work.await.unwrap() else { panic!("not processed") };
    assert!(checks >= 20, "only {checks} checks");
    assert_eq!(count_entries(&redis), 1);
    let again = contender.run("k", async |_| Ok::<_, BoxError>(0)).await.unwrap();
    let Outcome::Duplicate(first) = again else { panic!("not a duplicate") };
    assert_eq!(first.attempts, 1);
}

#[test]
fn handler_blocking_its_runtime_thread_keeps_lock() {
    let redis = RedisServer::start().unwrap();
    let url = redis.url();
    let (begun, has_begun) = mpsc::channel();
    let blocked = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let holder = runner(&start_keeper(url).await, OnLost::Cancel);
            holder
                .run("k", async |lock| {
                    begun.send(()).unwrap();
                    thread::sleep(WORK_DURATION);
                    lock.unwrap().check()?;
                    Ok::<_, BoxError>(())
                })
                .await
        })
    });
    has_begun.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let checks = runtime.block_on(async {
        let contender = runner(&start_keeper(redis.url()).await, OnLost::Cancel);
        let mut checks = 0;
        while !blocked.is_finished() && is_locked(&contender, "k").await {
            checks += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        checks
    });
    // The last check found a duplicate, so the lock was held until the handler finished.
    assert_eq!(blocked.join().unwrap().unwrap(), Outcome::Processed(()));
    assert!(checks >= 20, "only {checks} checks");
    assert_eq!(count_entries(&redis), 1);
}
