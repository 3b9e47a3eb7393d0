//! The servers that a differential test runs on.

use std::time::Duration;

use campanile_core::StoreKey;
use campanile_redis::RedisConfig;
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::support::long_timeout;

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
                let timeout = Duration::from_secs(60);
                let config = RedisConfig::sentinel(redis.name(), redis.urls());
                config.with_command_timeout(timeout).with_connect_timeout(timeout)
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
