//! A real Redis, or Valkey.

mod builder;
mod cluster;
mod cluster_view;
mod node;
mod resp;
mod sentinel;
mod server;

pub use builder::RedisServerBuilder;
pub use cluster::{RedisCluster, RedisClusterBuilder};
pub use sentinel::{RedisSentinel, RedisSentinelBuilder};
pub use server::RedisServer;
