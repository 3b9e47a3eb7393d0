//! The outbox on a real Postgres, with scripted brokers.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod brokers;
mod ends;
mod order;
mod permissions;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
mod world;
mod written;
