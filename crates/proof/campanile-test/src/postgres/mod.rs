//! A real Postgres.

mod builder;
mod programs;
mod server;

pub use builder::PgServerBuilder;
pub use server::PgServer;
