//! Tests of the helpers that run several Redis servers.

use campanile_test::{RedisCluster, RedisSentinel, eventually};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(90);

/// So long that a busy server does not look like a failed one.
const DOWN_AFTER: Duration = Duration::from_secs(5);
const NODE_TIMEOUT: &str = "5000"; // milliseconds

#[test]
fn cluster_serves_all_slots_and_moves_one_with_its_keys() {
    let cluster = RedisCluster::builder().config("cluster-node-timeout", NODE_TIMEOUT);
    let mut cluster = cluster.start().unwrap();
    let slot = cluster.slot_of("bell").unwrap();
    let owner = cluster.owner_of(slot).unwrap();
    cluster.node(owner).cli(&["SET", "bell", "rung"]).unwrap();
    let to = (owner + 1) % cluster.len();
    let moved = cluster.node(to).cli(&["GET", "bell"]).unwrap_err();
    assert!(moved.to_string().starts_with("MOVED"), "{moved}");

    cluster.begin_move(slot, to).unwrap();
    let ask = cluster.node(owner).cli(&["GET", &format!("{{bell}}{}", 2)]).unwrap_err();
    assert!(ask.to_string().starts_with("ASK"), "{ask}");
    cluster.end_move(slot, to).unwrap();
    assert_eq!(cluster.owner_of(slot), Some(to));
    assert_eq!(cluster.node(to).cli(&["GET", "bell"]).unwrap(), "rung");
}

#[test]
fn replica_takes_over_on_promotion_and_on_kill() {
    let cluster = RedisCluster::builder().replicas(1).password("sesame");
    let mut cluster = cluster.config("cluster-node-timeout", NODE_TIMEOUT).start().unwrap();
    let slot = cluster.slot_of("bell").unwrap();
    let owner = cluster.owner_of(slot).unwrap();
    assert_eq!(cluster.replicas_of(owner), [owner + 3]);

    cluster.promote(owner + 3).unwrap();
    let other = || cluster.owner_of(slot).filter(|&o| o == owner + 3);
    eventually(TIMEOUT, other).expect("the other nodes learn of the promotion");
    cluster.kill(owner + 3).unwrap();
    eventually(TIMEOUT, || cluster.owner_of(slot).filter(|&o| o == owner))
        .expect("the old master takes over");
}

#[test]
fn sentinels_promote_a_replica_when_the_primary_is_killed() {
    let redis = RedisSentinel::builder().password("sesame").sentinel_password("creak");
    let mut redis = redis.down_after(DOWN_AFTER).start().unwrap();
    assert_eq!(redis.primary(), Some(0));
    assert_eq!(redis.urls().len(), 3);
    redis.kill_sentinel(2).unwrap();
    redis.kill(0).unwrap();
    assert_eq!(redis.until_other_primary(0).unwrap(), 1);
}

#[test]
fn sentinels_promote_a_replica_when_asked() {
    let mut redis = RedisSentinel::builder().down_after(DOWN_AFTER).start().unwrap();
    assert_eq!(redis.failover().unwrap(), 1);
    assert_eq!(redis.primary(), Some(1));
}
