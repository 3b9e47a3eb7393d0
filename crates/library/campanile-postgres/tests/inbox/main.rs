//! The transactional inbox on a real Postgres.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod cancellation;
mod conclude;
mod conflicts;
mod effects;
mod failover;
mod fixture;
mod lost_commits;
mod runner;
mod steps;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
