//! Slots that move to another node while the store works, and masters that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile_core::{ExpireOutcome, Reply};
use campanile_idempotency::{ExpireStore, Found, InspectStore, Store};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{Proxy, RedisCluster, eventually};

use super::{keys_of, long_timeout, owner, slot, start_cluster};
use crate::support::{
    acquire, acquire_lock, adopt, apply, apply_with_retry, command, complete, grant, key, replies,
    timed,
};

const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn keys_of_migrating_slot_are_found_on_either_node() {
    let (mut cluster, store) = start_cluster().await;
    let first = key("key 0");
    let slot_of_first = slot(&cluster, &first);
    let in_slot = |n: &u32| slot(&cluster, &key(format!("key {n}"))) == slot_of_first;
    let keys: Vec<_> = (0..).filter(in_slot).take(40).map(|n| key(format!("key {n}"))).collect();
    let (old, new) = keys.split_at(20);
    let mut grants = Vec::new();
    for key in old {
        grants.push(acquire_lock(&store, key, 1).await);
    }
    let to = (owner(&cluster, &first) + 1) % 3;
    cluster.begin_move(slot_of_first, to).unwrap();

    // In one call: half of the keys are redirected to the other node.
    let batch = keys.iter().map(|key| command(key, acquire(2))).collect();
    let answers = replies(store.apply_batch(batch).await);
    assert!(answers[..20].iter().all(|r| matches!(r, Reply::Locked { .. })), "{answers:?}");
    assert!(
        answers[20..].iter().all(|r| matches!(r, Reply::Acquired { attempt: 1, .. })),
        "{answers:?}"
    );
    cluster.end_move(slot_of_first, to).unwrap();
    let mut batch: Vec<_> =
        old.iter().zip(grants).map(|(key, grant)| command(key, complete(grant, "old"))).collect();
    batch.extend(new.iter().zip(&answers[20..]).map(|(key, reply)| {
        let Reply::Acquired { token, .. } = reply else { unreachable!() };
        command(key, complete(grant(*token, 2), "new"))
    }));
    assert!(replies(store.apply_batch(batch).await).iter().all(|r| *r == Reply::Completed));
}

#[tokio::test]
async fn keys_of_migrating_slot_are_replicated_on_either_node() {
    let (mut cluster, config) = start_with_replicas();
    // Leaves no key in the slot that the other store could wait with.
    let plain = RedisStore::connect(config.clone()).await.unwrap();
    let store = RedisStore::connect(config.with_wait(1, MAX_WAIT)).await.unwrap();
    let first = key("key 0");
    let slot_of_first = slot(&cluster, &first);
    let in_slot = |n: &u32| slot(&cluster, &key(format!("key {n}"))) == slot_of_first;
    let keys: Vec<_> = (0..).filter(in_slot).take(6).map(|n| key(format!("key {n}"))).collect();
    let (old, new) = keys.split_at(3);
    let to = (owner(&cluster, &first) + 1) % 3;
    let (mut batch, mut before) = (Vec::new(), Vec::new());
    for key in old {
        let completion = complete(acquire_lock(&plain, key, 1).await, "old");
        assert_eq!(apply(&plain, key, completion.clone()).await.unwrap(), Reply::Completed);
        before.push(plain.inspect(key).await.unwrap().found);
        batch.push(command(key, completion));
    }
    batch.extend(new.iter().map(|key| command(key, acquire(1))));
    cluster.begin_move(slot_of_first, to).unwrap();
    let answers = replies(store.apply_batch(batch).await);
    assert!(answers[..3].iter().all(|reply| *reply == Reply::Completed), "{answers:?}");
    assert!(
        answers[3..].iter().all(|reply| matches!(reply, Reply::Acquired { .. })),
        "{answers:?}"
    );
    assert_eq!(store.shortfalls(), 0);
    // Waiting has changed no entry.
    for (key, before) in old.iter().zip(&before) {
        assert_eq!(plain.inspect(key).await.unwrap().found, *before);
    }
    cluster.end_move(slot_of_first, to).unwrap();
    for key in old {
        let reply = apply(&store, key, acquire(2)).await.unwrap();
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_moved_during_a_late_wait_is_confirmed_by_its_new_node() {
    let (mut cluster, config) = start_with_replicas();
    let plain = RedisStore::connect(config.clone()).await.unwrap();
    // Longer than the rest of the move takes.
    let store = RedisStore::connect(config.with_wait(1, Duration::from_secs(10))).await.unwrap();
    let key = key("key");
    let (slot, from) = (slot(&cluster, &key), owner(&cluster, &key));
    let to = (from + 1) % 3;
    let completion = complete(acquire_lock(&plain, &key, 1).await, "done");
    let [replica] = *cluster.replicas_of(from) else { panic!("expected one replica") };
    cluster.pause(replica).unwrap();
    cluster.begin_move(slot, to).unwrap();
    let completing = tokio::spawn({
        let (store, key) = (store.clone(), key.clone());
        async move { apply(&store, &key, completion).await }
    });
    let is_waiting = || {
        let clients = cluster.node(from).cli(&["INFO", "clients"]).unwrap();
        clients.contains("blocked_clients:1").then_some(())
    };
    eventually(MAX_WAIT, is_waiting).unwrap();
    cluster.end_move(slot, to).unwrap();
    assert_eq!(completing.await.unwrap().unwrap(), Reply::Completed);
    assert_eq!(store.shortfalls(), 0);
}

#[tokio::test]
async fn entries_of_migrating_slot_are_expired_on_either_node() {
    let (mut cluster, store) = start_cluster().await;
    let first = key("key 0");
    let slot_of_first = slot(&cluster, &first);
    let in_slot = |n: &u32| slot(&cluster, &key(format!("key {n}"))) == slot_of_first;
    let keys: Vec<_> = (0..).filter(in_slot).take(10).map(|n| key(format!("key {n}"))).collect();
    let to = (owner(&cluster, &first) + 1) % 3;
    let mut entries = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        if index == 5 {
            cluster.begin_move(slot_of_first, to).unwrap();
        }
        entries.push((key.clone(), adopt(&store, key).await));
    }
    let outcomes = store.expire(&entries, Duration::ZERO).await.unwrap();
    assert_eq!(outcomes, [ExpireOutcome::Done; 10]);
    cluster.end_move(slot_of_first, to).unwrap();
    for key in &keys {
        assert_eq!(store.inspect(key).await.unwrap().found, Found::Absent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_migration_under_load_loses_and_counts_nothing() {
    let (cluster, store) = start_cluster().await;
    move_slots_under_load(cluster, store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_migration_under_load_leaves_nothing_unreplicated() {
    let (cluster, config) = start_with_replicas();
    let store = RedisStore::connect(config.with_wait(1, MAX_WAIT)).await.unwrap();
    move_slots_under_load(cluster, store.clone()).await;
    assert_eq!(store.shortfalls(), 0);
}

/// A cluster with a replica of each master.
fn start_with_replicas() -> (RedisCluster, RedisConfig) {
    // No replica is promoted because its master is late.
    let cluster = RedisCluster::builder().replicas(1).config("cluster-node-timeout", "15000");
    let cluster = cluster.start().unwrap();
    let config = long_timeout(&cluster);
    (cluster, config)
}

/// Moves each slot of the namespace twice, while keys are acquired and completed. No command is
/// refused, because between the two moves of its slot, all other slots move.
async fn move_slots_under_load(mut cluster: RedisCluster, store: RedisStore) {
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (store, stop) = (store.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut done = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let keys: Vec<_> =
                        (0..32).map(|n| key(format!("{worker}/{}/{n}", done.len()))).collect();
                    let acquires = keys.iter().map(|key| command(key, acquire(1))).collect();
                    let mut completions = Vec::new();
                    let acquired = store.apply_batch(acquires).await;
                    for (key, reply) in keys.iter().zip(replies(acquired)) {
                        let Reply::Acquired { token, attempt: 1, .. } = reply else {
                            panic!("{reply:?}")
                        };
                        completions.push(command(key, complete(grant(token, 1), "done")));
                    }
                    for reply in replies(store.apply_batch(completions).await) {
                        assert_eq!(reply, Reply::Completed);
                    }
                    done.extend(keys);
                }
                done
            })
        })
        .collect();

    // Moves each slot of the namespace to the next master, twice.
    let mut slots: Vec<_> = (0..200).map(|n| slot(&cluster, &key(format!("key {n}")))).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 16);
    for &slot in slots.iter().chain(&slots) {
        let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
        cluster.move_slot(slot, to).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut total = 0;
    for worker in workers {
        let done = worker.await.unwrap();
        total += done.len();
        for keys in done.chunks(128) {
            let batch = keys.iter().map(|key| command(key, acquire(2))).collect();
            for reply in replies(store.apply_batch(batch).await) {
                assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
            }
        }
    }
    println!("{total} keys while {} slots moved", 2 * slots.len());
    assert!(total > 0);
}

#[tokio::test]
async fn promoted_replica_is_found() {
    let mut cluster = RedisCluster::builder().replicas(1).start().unwrap();
    let store = RedisStore::connect(long_timeout(&cluster)).await.unwrap();
    let asked = keys_of(&cluster, 0).next().unwrap();
    let grant = acquire_lock(&store, &asked, 1).await;
    // The old master steps down and becomes a replica.
    cluster.promote(3).unwrap();
    eventually(MAX_WAIT, || (owner(&cluster, &asked) == 3).then_some(())).unwrap();
    assert_eq!(apply(&store, &asked, complete(grant, "done")).await.unwrap(), Reply::Completed);

    let killed = keys_of(&cluster, 1).next().unwrap();
    let grant = acquire_lock(&store, &killed, 1).await;
    // A write is answered before a replica has it.
    let is_replicated = || {
        let keys = |node: usize| cluster.node(node).cli(&["DBSIZE"]).unwrap();
        (keys(1) == keys(4)).then_some(())
    };
    eventually(MAX_WAIT, is_replicated).unwrap();
    cluster.kill(1).unwrap();
    let completed = apply_with_retry(&store, &killed, complete(grant, "done"));
    let (took, reply) = timed(completed).await;
    println!("answered {took:?} after its master was killed");
    assert_eq!(reply, Reply::Completed);
    assert_eq!(owner(&cluster, &killed), 4);
    let reply = apply_with_retry(&store, &killed, acquire(2)).await;
    assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_during_takeover_waits_for_the_new_master() {
    let cluster = RedisCluster::builder().replicas(1).start().unwrap();
    let proxy = Proxy::to(cluster.node(0).addr()).unwrap();
    let port = proxy.addr().port().to_string();
    cluster.node(0).cli(&["CONFIG", "SET", "cluster-announce-port", &port]).unwrap();
    let reports = |args: &[&str], text: &str| {
        let report = cluster.node(1).cli(args).unwrap();
        report.contains(text).then_some(())
    };
    eventually(MAX_WAIT, || reports(&["CLUSTER", "SLOTS"], &port)).unwrap();
    cluster.node(1).cli(&["CONFIG", "RESETSTAT"]).unwrap();
    // The store is still connecting to the old master when another node takes over.
    proxy.delay(MAX_WAIT);
    let config = RedisConfig::cluster([cluster.node(1).url()]).with_connect_timeout(MAX_WAIT);
    let connecting = tokio::spawn(async { RedisStore::connect(config).await.map(drop) });
    eventually(MAX_WAIT, || reports(&["INFO", "commandstats"], "cluster|slots:calls=1")).unwrap();
    // Without the old master's consent, because the replica reaches it through the proxy, too.
    cluster.node(3).cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]).unwrap();
    let is_replica = || cluster.node(0).cli(&["ROLE"]).unwrap().starts_with("slave");
    eventually(MAX_WAIT, || is_replica().then_some(())).unwrap();
    proxy.heal().unwrap();
    connecting.await.unwrap().unwrap();
}
