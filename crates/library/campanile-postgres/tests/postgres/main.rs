//! The Postgres store on a real Postgres.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod batches;
mod clock;
mod contract;
mod differential;
mod hosts;
mod inspect;
mod migrations;
mod outage;
mod permissions;
mod pooler;
#[allow(dead_code, reason = "other tests use the rest")]
mod standby;
mod support;
mod sweep;
mod tls;
