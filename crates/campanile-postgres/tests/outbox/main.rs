//! The outbox on a real Postgres, with brokers that do as they are told.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod brokers;
mod ends;
mod order;
mod permissions;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod support;
mod world;
mod written;
