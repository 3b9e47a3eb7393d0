//! Traces as they are exported.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod batches;
mod chain;
mod copies;
mod outbox;
mod relations;
mod support;
