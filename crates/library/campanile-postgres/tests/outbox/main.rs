//! The outbox on a real Postgres, with scripted brokers.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod brokers;
mod failover;
mod fixture;
mod order;
mod permissions;
mod publish;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
