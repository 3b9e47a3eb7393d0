//! A real Redis.

mod builder;
mod resp;
mod server;

pub use builder::RedisServerBuilder;
pub use server::RedisServer;
