//! A cluster that loses a master, and a cluster with migrating slots.

use std::collections::BTreeSet;
use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::{RedisCluster, RedisServer, eventually};

use crate::rounds;
use crate::storm::{NAMESPACE, Storm, timed};
use crate::verdict::Cause;

const SOON: Duration = Duration::from_secs(30);

/// Number of buckets of a namespace.
const BUCKETS: u16 = 16;

#[test]
fn a_replica_that_takes_over_from_a_killed_master_costs_no_record() {
    rounds(|seed| {
        let mut cluster = RedisCluster::builder().replicas(1).start().unwrap();
        let mut storm = begin("a master of a cluster killed", seed, &cluster);
        storm.begin_fault(0.25, Cause::Loss);
        let slot = slots(&cluster)[0];
        let killed = cluster.owner_of(slot).unwrap();
        cluster.kill(killed).unwrap();
        let taken_over = || cluster.owner_of(slot).filter(|owner| *owner != killed);
        eventually(SOON, taken_over).expect("the replica takes over");
        storm.end_fault();
        storm.end(masters(&cluster));
    });
}

#[test]
fn slots_that_move_cost_no_record_and_no_attempt() {
    rounds(|seed| {
        let mut cluster = RedisCluster::start().unwrap();
        let mut storm = begin("all slots of a cluster moved", seed, &cluster);
        storm.begin_fault(0.1, Cause::None);
        let mut moves = slots(&cluster).into_iter().cycle();
        let mut moved = 0;
        storm.until(0.75, || {
            let slot = moves.next().expect("the iterator is cyclic");
            let to = (cluster.owner_of(slot).unwrap() + 1) % cluster.len();
            cluster.move_slot(slot, to).unwrap();
            moved += 1;
        });
        println!("{moved} moves");
        assert!(moved > 1);
        storm.end_fault();
        storm.end(masters(&cluster));
    });
}

fn begin(scene: &'static str, seed: u64, cluster: &RedisCluster) -> Storm {
    Storm::begin(scene, seed, || timed(RedisConfig::cluster(cluster.urls())))
}

/// Computes the slots of the namespace's buckets.
fn slots(cluster: &RedisCluster) -> Vec<u16> {
    let slot = |bucket| cluster.slot_of(&format!("{{{NAMESPACE}:{bucket:02x}}}")).unwrap();
    (0..BUCKETS).map(slot).collect()
}

/// Finds the servers that hold the entries.
fn masters(cluster: &RedisCluster) -> impl Iterator<Item = &RedisServer> {
    let owners = slots(cluster).into_iter().map(|slot| cluster.owner_of(slot).unwrap());
    owners.collect::<BTreeSet<_>>().into_iter().map(|owner| cluster.node(owner))
}
