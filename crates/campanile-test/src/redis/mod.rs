//! A real Redis.

mod builder;
mod cluster;
mod member;
mod resp;
mod sentinel;
mod server;
mod view;

pub use builder::RedisServerBuilder;
pub use cluster::{RedisCluster, RedisClusterBuilder};
pub use sentinel::{RedisSentinel, RedisSentinelBuilder};
pub use server::RedisServer;
