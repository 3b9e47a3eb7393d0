//! The transactional inbox on a real Postgres.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod conclude;
mod conflicts;
mod dropping;
mod effects;
mod failover;
mod guarding;
mod lost_commits;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
mod world;
