//! A cluster that loses a master, and a cluster with migrating slots.

use std::collections::BTreeSet;
use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::history::{Cause, FaultKind};
use campanile_test::{RedisCluster, RedisServer, eventually};

use crate::repeat;
use crate::scenario::{NAMESPACE, Scenario, with_timeout};

const TIMEOUT: Duration = Duration::from_secs(90);

/// So long that a busy node does not look like a failed one, in milliseconds.
const NODE_TIMEOUT: &str = "5000";

/// Number of buckets of a namespace.
const BUCKETS: u16 = 16;

#[test]
fn replica_takeover_from_killed_master_loses_no_record() {
    repeat(|seed| {
        let mut cluster = start_cluster(1);
        let mut scenario = start("a master of a cluster killed", seed, &cluster);
        scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
        let slot = slots(&cluster)[0];
        let killed = cluster.owner_of(slot).unwrap();
        cluster.kill(killed).unwrap();
        let taken_over = || cluster.owner_of(slot).filter(|owner| *owner != killed);
        eventually(TIMEOUT, taken_over).expect("the replica takes over");
        scenario.end_fault();
        scenario.writes_lost(None);
        let causes = [Cause::StoreUnavailable, Cause::StoreLostWrites];
        scenario.finish(masters(&cluster), &causes);
    });
}

#[test]
fn moved_slots_cost_no_record_and_no_attempt() {
    repeat(|seed| {
        let mut cluster = start_cluster(0);
        let mut scenario = start("all slots of a cluster moved", seed, &cluster);
        scenario.start_fault(0.1, None);
        let mut next_slots = slots(&cluster).into_iter().cycle();
        let mut moved = 0;
        scenario.repeat_until(0.75, || {
            let slot = next_slots.next().expect("the iterator is cyclic");
            let to = (cluster.owner_of(slot).unwrap() + 1) % cluster.len();
            cluster.move_slot(slot, to).unwrap();
            moved += 1;
        });
        println!("{moved} moves");
        assert!(moved > 1);
        scenario.end_fault();
        scenario.finish(masters(&cluster), &[]);
    });
}

fn start_cluster(replicas: usize) -> RedisCluster {
    let builder = RedisCluster::builder().replicas(replicas);
    builder.config("cluster-node-timeout", NODE_TIMEOUT).start().unwrap()
}

fn start(name: &'static str, seed: u64, cluster: &RedisCluster) -> Scenario {
    Scenario::start(name, seed, || with_timeout(RedisConfig::cluster(cluster.urls())))
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
