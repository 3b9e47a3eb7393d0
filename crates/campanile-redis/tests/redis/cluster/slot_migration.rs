//! Slots that move to another node while the store works, and masters that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile_core::Reply;
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use campanile_test::{RedisCluster, eventually};

use super::{keys_of, owner, patient, slot, started};
use crate::support::{
    acquire, acquired, apply, command, complete, grant, insist, key, replies, timed,
};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn keys_of_a_slot_that_is_on_its_way_are_found_at_either_node() {
    let (mut cluster, store) = started().await;
    let first = key("key 0");
    let slot_of_first = slot(&cluster, &first);
    let in_slot = |n: &u32| slot(&cluster, &key(format!("key {n}"))) == slot_of_first;
    let keys: Vec<_> = (0..).filter(in_slot).take(40).map(|n| key(format!("key {n}"))).collect();
    let (old, new) = keys.split_at(20);
    let mut grants = Vec::new();
    for key in old {
        grants.push(acquired(&store, key, 1).await);
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

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_lose_nothing_and_count_nothing() {
    let (mut cluster, store) = started().await;
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
                    for (key, reply) in keys.iter().zip(replies(store.apply_batch(acquires).await))
                    {
                        let Reply::Acquired { token, attempt: 1 } = reply else {
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
async fn a_replica_that_takes_over_is_found() {
    let mut cluster = RedisCluster::builder().replicas(1).start().unwrap();
    let store = RedisStore::connect(patient(&cluster)).await.unwrap();
    let asked = keys_of(&cluster, 0).next().unwrap();
    let grant = acquired(&store, &asked, 1).await;
    // The old master steps down and becomes a replica.
    cluster.promote(3).unwrap();
    eventually(SOON, || (owner(&cluster, &asked) == 3).then_some(())).unwrap();
    assert_eq!(apply(&store, &asked, complete(grant, "done")).await.unwrap(), Reply::Completed);

    let killed = keys_of(&cluster, 1).next().unwrap();
    let grant = acquired(&store, &killed, 1).await;
    // A write is answered before a replica has it.
    let reached = || {
        let keys = |node: usize| cluster.node(node).cli(&["DBSIZE"]).unwrap();
        (keys(1) == keys(4)).then_some(())
    };
    eventually(SOON, reached).unwrap();
    cluster.kill(1).unwrap();
    let completed = super::away::until_answered(&store, &killed, complete(grant, "done"));
    let (took, reply) = timed(completed).await;
    println!("answered {took:?} after its master was killed");
    assert_eq!(reply, Reply::Completed);
    assert_eq!(owner(&cluster, &killed), 4);
    let reply = insist(&store, &killed, acquire(2)).await;
    assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
}
