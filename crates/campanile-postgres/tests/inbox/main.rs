//! The transactional inbox on a real Postgres.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod conclude;
mod conflicts;
mod dropping;
mod effects;
mod failover;
mod guarding;
mod lost_commits;
#[path = "../postgres/support.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod support;
mod world;
