//! Which acknowledged writes Redis loses when it is killed, when the end of its append-only file is
//! lost, and when its primary is lost.
//!
//! Prints the counts. Asserts what each setting guarantees, but not what it only usually does. A
//! kill (SIGKILL) is not a power loss: data that was written but not synced survives it. A file that
//! is cut after the kill is like a power loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{FencingToken, Operation, Reply, StoreKey};
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use campanile_test::{Proxy, RedisServer};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::aof;
use crate::support::{
    acquire, acquire_lock, apply, command, complete, grant, key, long_timeout, owner,
    replica_through, setting,
};

/// The default; `CAMPANILE_DURABILITY_ROUNDS` sets another number.
const ROUNDS: u64 = 1;

/// The minimum number of acknowledged completions before the server is killed.
const COMPLETIONS: usize = 3_000;

/// Like a lock keeper: batches of this many commands, with this many batches in flight.
const BATCH: u64 = 32;
const IN_FLIGHT: u64 = 4;

/// How far the replica is behind when its primary is lost.
const REPLICA_LAG: Duration = Duration::from_millis(50);

fn rounds() -> u64 {
    setting("CAMPANILE_DURABILITY_ROUNDS").unwrap_or(ROUNDS)
}

/// Acquires and completes new keys until the store fails, and records which completions were
/// acknowledged.
struct Load {
    workers: JoinSet<()>,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
}

/// A completion and the time of its acknowledgment.
type Acknowledged = (StoreKey, Instant);

impl Load {
    fn start(store: &RedisStore) -> Self {
        let (mut workers, acknowledged) = (JoinSet::new(), Arc::<Mutex<Vec<_>>>::default());
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..IN_FLIGHT {
            let (store, next) = (store.clone(), Arc::clone(&next));
            let acknowledged = Arc::clone(&acknowledged);
            workers.spawn(async move {
                loop {
                    let first = next.fetch_add(BATCH, Ordering::Relaxed);
                    let keys = (first..first + BATCH).map(|n| key(n.to_string())).collect();
                    match complete_keys(&store, keys).await {
                        Some(keys) => {
                            let now = Instant::now();
                            let keys = keys.into_iter().map(|key| (key, now));
                            acknowledged.lock().unwrap().extend(keys);
                        }
                        None => return,
                    }
                }
            });
        }
        Self { workers, acknowledged }
    }

    /// Waits until enough completions have been acknowledged.
    async fn warm_up(&self) {
        while self.count() < COMPLETIONS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// The completions that were acknowledged before the server was gone.
    async fn stop(mut self) -> Vec<Acknowledged> {
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

/// Acquires and completes the keys. `None` if the store has failed.
async fn complete_keys(store: &RedisStore, keys: Vec<StoreKey>) -> Option<Vec<StoreKey>> {
    let acquires = keys.iter().map(|key| command(key, acquire(1))).collect();
    let mut completions = Vec::new();
    for (key, answer) in keys.iter().zip(store.apply_batch(acquires).await) {
        let Reply::Acquired { token, .. } = answer.ok()?.reply else { panic!("{key:?} is new") };
        completions.push(command(key, complete(grant(token, 1), "done")));
    }
    for answer in store.apply_batch(completions).await {
        assert_eq!(answer.ok()?.reply, Reply::Completed);
    }
    Some(keys)
}

/// Counts the completions that the server does not have. Prints the number, and the age of the
/// oldest one when the first server was killed.
async fn count_lost(
    what: &str,
    server: &RedisServer,
    acknowledged: &[Acknowledged],
    killed_at: Instant,
) -> u64 {
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let (mut lost, mut oldest) = (0, Duration::ZERO);
    for some in acknowledged.chunks(64) {
        let acquires = some.iter().map(|(key, _)| command(key, acquire(2))).collect();
        for ((_, when), answer) in some.iter().zip(store.apply_batch(acquires).await) {
            if !matches!(answer.unwrap().reply, Reply::Duplicate { .. }) {
                lost += 1;
                oldest = oldest.max(killed_at - *when);
            }
        }
    }
    let count = acknowledged.len();
    println!("{what}: {lost} of {count} acknowledged completions lost, the oldest {oldest:?} old");
    lost
}

/// Kills a server under load. Returns the acknowledged completions, and when it was killed.
async fn kill_under_load(server: &mut RedisServer) -> (Vec<Acknowledged>, Instant) {
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let load = Load::start(&store);
    load.warm_up().await;
    server.kill().unwrap();
    let killed_at = Instant::now();
    let acknowledged = load.stop().await;
    (acknowledged, killed_at)
}

/// Kills a server with this `appendfsync` under load and restarts it. Counts the acknowledged
/// completions that are lost.
async fn lost_by_kill(appendfsync: Option<&str>) -> u64 {
    let mut builder = RedisServer::builder().append_only(appendfsync.is_some());
    if let Some(appendfsync) = appendfsync {
        builder = builder.config("appendfsync", appendfsync);
    }
    let mut server = builder.start().unwrap();
    let (acknowledged, killed_at) = kill_under_load(&mut server).await;
    server.restart().unwrap();
    let setting =
        appendfsync.map_or("appendonly no".into(), |value| format!("appendfsync {value}"));
    count_lost(&format!("killed, {setting}"), &server, &acknowledged, killed_at).await
}

/// Kills a server under load, and cuts the end off its append-only file before it restarts, as if
/// it had not been synced. Counts the acknowledged completions, and those that are lost.
async fn lost_by_cut(bytes: u64) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = aof::server(&folder).start().unwrap();
    let (acknowledged, killed_at) = kill_under_load(&mut server).await;
    aof::cut(&folder, bytes);
    server.restart().unwrap();
    let what = format!("the last {bytes} B of the append-only file lost");
    let lost = count_lost(&what, &server, &acknowledged, killed_at).await;
    (acknowledged.len() as u64, lost)
}

/// Loses the primary's machine under load and promotes its replica, which was cut off from the
/// primary a moment before. Counts the acknowledged completions that are lost, and the store's
/// shortfalls.
async fn lost_by_failover(replicas: u32) -> (u64, u64) {
    let mut primary = RedisServer::start().unwrap();
    let proxy = Proxy::to(primary.addr()).unwrap();
    let replica = replica_through(&primary, proxy.addr().port());
    let waiting = long_timeout(primary.url()).with_wait(1, Duration::from_secs(60));
    let mut store = RedisStore::connect(waiting).await.unwrap();
    // Succeeds only once replication works.
    acquire_lock(&store, &key("first"), 1).await;
    if replicas == 0 {
        store = RedisStore::connect(long_timeout(primary.url())).await.unwrap();
    }
    let load = Load::start(&store);
    load.warm_up().await;
    proxy.swallow_replies();
    let before = load.count();
    tokio::time::sleep(REPLICA_LAG).await;
    // Without a wait, some are acknowledged that were not in flight before.
    while replicas == 0 && load.count() <= before + (IN_FLIGHT * BATCH) as usize {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.cut();
    primary.kill().unwrap();
    let killed_at = Instant::now();
    let acknowledged = load.stop().await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let what = format!("failed over, a replica {REPLICA_LAG:?} behind, {replicas} waited for");
    (count_lost(&what, &replica, &acknowledged, killed_at).await, store.shortfalls())
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_loses_nothing_with_appendfsync_always() {
    for _ in 0..rounds() {
        assert_eq!(lost_by_kill(Some("always")).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_loses_completions_without_persistence() {
    for _ in 0..rounds() {
        lost_by_kill(Some("everysec")).await;
        lost_by_kill(Some("no")).await;
        assert!(lost_by_kill(None).await >= COMPLETIONS as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_without_its_end_loses_only_last_completions() {
    for _ in 0..rounds() {
        // A completion is a write of at least 100 bytes.
        let bytes = 100_000;
        let (acknowledged, lost) = lost_by_cut(bytes).await;
        assert!(0 < lost && lost <= bytes / 100 && lost < acknowledged, "{lost} of {acknowledged}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_no_completion_waited_for() {
    for _ in 0..rounds() {
        assert!(lost_by_failover(0).await.0 > 0, "the replica is behind");
        let (lost, shortfalls) = lost_by_failover(1).await;
        assert_eq!((lost, shortfalls), (0, 0));
    }
}

/// The release does not wait for the replica, so that the replica still has the lock.
#[tokio::test]
async fn failover_loses_release_and_counts_the_attempt() {
    let acquire = |bits| Operation::Acquire {
        owner: owner(bits),
        ttl: Duration::from_secs(1),
        max_attempts: 5,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    let mut primary = RedisServer::start().unwrap();
    let proxy = Proxy::to(primary.addr()).unwrap();
    let replica = replica_through(&primary, proxy.addr().port());
    let waiting = long_timeout(primary.url()).with_wait(1, Duration::from_secs(60));
    let store = RedisStore::connect(waiting).await.unwrap();
    let key = key("released");
    let reply = apply(&store, &key, acquire(1)).await.unwrap();
    let Reply::Acquired { token, attempt: 1, .. } = reply else { panic!("{reply:?}") };
    proxy.swallow_replies();
    let release = Operation::Release { grant: grant(token, 1), ran: true };
    assert_eq!(apply(&store, &key, release).await.unwrap(), Reply::Released);
    primary.kill().unwrap();
    replica.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();

    let store = RedisStore::connect(long_timeout(replica.url())).await.unwrap();
    let attempt = loop {
        match apply(&store, &key, acquire(2)).await.unwrap() {
            Reply::Locked { remaining } => tokio::time::sleep(remaining).await,
            Reply::Acquired { attempt, .. } => break attempt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(attempt, 2);
}
