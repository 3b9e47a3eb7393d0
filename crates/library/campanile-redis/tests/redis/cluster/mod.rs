//! A store on a cluster.

mod healthy;
mod node_down;
mod slot_migration;

use campanile_core::StoreKey;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::RedisCluster;

use crate::support::{key, redis_key, with_long_timeouts};

/// A configuration for tests in which nothing times out, however busy the machine is.
pub(crate) fn long_timeout(cluster: &RedisCluster) -> RedisConfig {
    with_long_timeouts(RedisConfig::cluster(cluster.urls()))
}

async fn start_cluster() -> (RedisCluster, RedisStore) {
    let cluster = RedisCluster::start().unwrap();
    let store = RedisStore::connect(long_timeout(&cluster)).await.unwrap();
    (cluster, store)
}

/// The slot of an entry, as the cluster computes it.
pub(crate) fn slot(cluster: &RedisCluster, key: &StoreKey) -> u16 {
    let name = redis_key(key);
    let end = name.iter().position(|byte| *byte == b'}').unwrap();
    cluster.slot_of(std::str::from_utf8(&name[..=end]).unwrap()).unwrap()
}

/// The node that has this key.
pub(crate) fn owner(cluster: &RedisCluster, key: &StoreKey) -> usize {
    cluster.owner_of(slot(cluster, key)).unwrap()
}

/// Keys that this node has.
fn keys_of(cluster: &RedisCluster, node: usize) -> impl Iterator<Item = StoreKey> {
    (0..).map(|n| key(format!("key {n}"))).filter(move |key| owner(cluster, key) == node)
}
