//! The Postgres store on a real Postgres.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod contract;
mod migrations;
mod support;
