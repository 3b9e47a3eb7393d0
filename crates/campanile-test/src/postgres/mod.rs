//! A real Postgres.

mod builder;
mod folder;
mod programs;
mod server;

pub use builder::PgServerBuilder;
pub use server::PgServer;
