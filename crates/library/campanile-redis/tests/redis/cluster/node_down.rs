//! A cluster with an unavailable master.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::Reply;
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::RedisCluster;

use super::{keys_of, owner};
use crate::support::{
    MAX_CALL_TIME, acquire, acquire_lock, apply, apply_with_retry, chain, command, complete, key,
    timed,
};

async fn store_with_short_timeout(cluster: &RedisCluster) -> RedisStore {
    let config = RedisConfig::cluster(cluster.urls());
    let config = config.with_command_timeout(Duration::from_millis(300));
    RedisStore::connect(config).await.unwrap()
}

#[tokio::test]
async fn killed_masters_keys_fail_at_once_until_restart() {
    let mut cluster = RedisCluster::builder().config("appendonly", "yes").start().unwrap();
    // A killed master refuses connections at once.
    let store = RedisStore::connect(super::long_timeout(&cluster)).await.unwrap();
    let lost = keys_of(&cluster, 2).next().unwrap();
    let grant = acquire_lock(&store, &lost, 1).await;
    let kept: Vec<_> = keys_of(&cluster, 0).take(20).collect();
    // Done only once the acquire is on disk.
    cluster.node(2).cli(&["CONFIG", "SET", "appendfsync", "always"]).unwrap();
    cluster.kill(2).unwrap();
    for key in &kept {
        let batch = vec![command(&lost, complete(grant, "done")), command(key, acquire(1))];
        let (took, answers) = timed(store.apply_batch(batch)).await;
        assert!(took < MAX_CALL_TIME, "{took:?}");
        let error = answers[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        let address = cluster.node(2).addr().to_string();
        assert!(chain(error).contains(&address), "{}", chain(error));
        let reply = &answers[1].as_ref().unwrap().reply;
        assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    }
    cluster.restart(2).unwrap();
    let (took, reply) = timed(apply_with_retry(&store, &lost, complete(grant, "done"))).await;
    println!("answered {took:?} after the master was back");
    assert_eq!(reply, Reply::Completed);
}

#[tokio::test]
async fn connect_skips_unavailable_master() {
    let mut cluster = RedisCluster::start().unwrap();
    let count_slot = cluster.slot_of("campanile:{tests}").unwrap();
    // One of the nodes has the namespace's bucket count; this one does not.
    let down = (cluster.owner_of(count_slot).unwrap() + 1) % 3;
    let store = store_with_short_timeout(&cluster).await;
    acquire_lock(&store, &key("first"), 1).await;
    let other = (0..3).find(|&node| node != down).unwrap();
    let kept = keys_of(&cluster, other).next().unwrap();
    cluster.pause(down).unwrap();
    let config = RedisConfig::cluster(cluster.urls());
    let config = config.with_connect_timeout(Duration::from_secs(5));
    let (took, started) = timed(RedisStore::connect(config)).await;
    assert!(took < 3 * MAX_CALL_TIME, "{took:?}");
    acquire_lock(&started.unwrap(), &kept, 1).await;
}

#[tokio::test]
async fn master_that_timed_out_a_caller_blocks_nobody_else() {
    let mut cluster = RedisCluster::start().unwrap();
    let store = RedisStore::connect(super::long_timeout(&cluster)).await.unwrap();
    let [kept, lost] = [0, 2].map(|node| keys_of(&cluster, node).next().unwrap());
    acquire_lock(&store, &lost, 1).await;
    cluster.pause(2).unwrap();
    // Like a lock keeper, which has less time than the store.
    let callers_timeout = Duration::from_millis(200);
    tokio::time::timeout(callers_timeout, apply(&store, &lost, acquire(1))).await.unwrap_err();
    let batch = vec![command(&lost, acquire(1)), command(&kept, acquire(1))];
    let (took, answers) = timed(store.apply_batch(batch)).await;
    assert!(took < MAX_CALL_TIME, "{took:?}");
    assert!(chain(answers[0].as_ref().unwrap_err()).contains("is unavailable ("), "{answers:?}");
    assert!(answers[1].is_ok(), "{answers:?}");
    cluster.resume(2).unwrap();
    apply_with_retry(&store, &lost, acquire(1)).await;
}

/// The keeper renews over connections of their own, perhaps for the first time during an outage.
#[tokio::test]
async fn new_connections_serve_other_keys_while_a_master_is_down() {
    let mut cluster = RedisCluster::start().unwrap();
    let store = RedisStore::connect(super::long_timeout(&cluster)).await.unwrap();
    // The master that has the namespace's bucket count.
    let down = cluster.owner_of(cluster.slot_of("campanile:{tests}").unwrap()).unwrap();
    let kept = keys_of(&cluster, (down + 1) % 3).next().unwrap();
    let grant = acquire_lock(&store, &kept, 1).await;
    cluster.kill(down).unwrap();
    let reply = apply(&store.for_renewals(), &kept, complete(grant, "done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
}

/// Counts the answered commands by master, under a load of calls with keys of all masters.
struct Load {
    done: Arc<[AtomicU64; 3]>,
    stop: Arc<AtomicBool>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Like a lock keeper: several calls at a time, each with keys of any master.
    fn start(cluster: &RedisCluster, store: &RedisStore) -> Self {
        let (done, stop) = (Arc::<[AtomicU64; 3]>::default(), Arc::new(AtomicBool::new(false)));
        let owners: Vec<_> = (0..600).map(|n| owner(cluster, &key(format!("load {n}")))).collect();
        let owners = Arc::new(owners);
        let workers = (0..4).map(|worker| {
            let (store, owners) = (store.clone(), Arc::clone(&owners));
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut at = worker * 150;
                while !stop.load(Ordering::Relaxed) {
                    let names: Vec<usize> = (0..96).map(|n| (at + n) % owners.len()).collect();
                    at += names.len();
                    let acquire = |n: &usize| command(&key(format!("load {n}")), acquire(7));
                    let answers = store.apply_batch(names.iter().map(acquire).collect()).await;
                    // If all commands are refused at once, nothing above yields.
                    tokio::task::yield_now().await;
                    for (name, answer) in names.iter().zip(answers) {
                        if answer.is_ok() {
                            done[owners[*name]].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
        });
        let workers = workers.collect();
        Self { done, stop, workers }
    }

    /// Counts the commands answered in this time, by master.
    async fn count_during(&self, time: Duration) -> [u64; 3] {
        self.done.iter().for_each(|done| done.store(0, Ordering::Relaxed));
        tokio::time::sleep(time).await;
        [0, 1, 2].map(|master| self.done[master].load(Ordering::Relaxed))
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in std::mem::take(&mut self.workers) {
            worker.await.unwrap();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_master_does_not_block_other_keys() {
    let mut cluster = RedisCluster::start().unwrap();
    let store = store_with_short_timeout(&cluster).await;
    let load = Load::start(&cluster, &store);
    let second = Duration::from_secs(1);
    load.count_during(second / 2).await;
    for hangs in [true, false] {
        let before = load.count_during(second).await;
        if hangs {
            cluster.pause(2).unwrap()
        } else {
            cluster.kill(2).unwrap()
        }
        let at_first = load.count_during(second).await;
        println!("{before:?} per second; {at_first:?} in the first second without master 2");
        // A blocked master would leave a few hundred in every window; other load on the machine
        // would not.
        let mut windows = 0;
        loop {
            let then = load.count_during(second).await;
            println!("then {then:?}");
            assert_eq!(then[2], 0);
            let of_others = |done: [u64; 3]| (done[0] + done[1]) as f64;
            if of_others(then) >= 0.3 * of_others(before) {
                break;
            }
            windows += 1;
            assert!(windows < 60, "the keys of other masters are held up");
        }
        if hangs {
            cluster.resume(2).unwrap()
        } else {
            cluster.restart(2).unwrap()
        }
        let back = load.count_during(second).await;
        println!("and after its return {back:?}");
        let seen = campanile_test::eventually(Duration::from_secs(20), || {
            (load.done[2].load(Ordering::Relaxed) > 0).then_some(())
        });
        seen.expect("the keys of master 2 should be served again");
    }
    load.stop().await;
}
