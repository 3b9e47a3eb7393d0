//! The guarantees of the layer and its keeper, on paused time, over a store with faults.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod acquiring;
mod batching;
mod blocking;
mod cancelling;
mod classifying;
mod completing;
mod derived_keys;
mod details;
mod dropping;
mod duplicates;
mod giving_up;
mod harness;
mod losing;
mod observing;
mod orders;
mod outages;
mod outcomes;
mod panics;
mod refusals;
mod renewing;
mod replies;
mod request_types;
mod sharing;
mod simulation;
mod steps;
mod transactional;
mod turns;
mod waiting;
