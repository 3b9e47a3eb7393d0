//! The servers that a differential test runs on.

use campanile_core::StoreKey;
use campanile_redis::RedisConfig;
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::support::{long_timeout, with_long_timeouts};

pub(super) enum Servers {
    Single(RedisServer),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
}

impl Servers {
    pub(super) fn config(&self) -> RedisConfig {
        match self {
            Self::Single(server) => long_timeout(server.url()),
            Self::Sentinel(redis) => {
                with_long_timeouts(RedisConfig::sentinel(redis.name(), redis.urls()))
            }
            Self::Cluster(cluster) => crate::cluster::long_timeout(cluster),
        }
    }

    pub(super) fn all(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinel(redis) => vec![redis.server(0)],
            Self::Cluster(cluster) => (0..cluster.len()).map(|node| cluster.node(node)).collect(),
        }
    }

    /// The index of the server that has the key.
    pub(super) fn owner(&self, key: &StoreKey) -> usize {
        match self {
            Self::Single(_) | Self::Sentinel(_) => 0,
            Self::Cluster(cluster) => crate::cluster::owner(cluster, key),
        }
    }
}
