//! The promises of the layer and its keeper, on paused time, over a store with faults.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod acquiring;
mod batching;
mod beside;
mod blocking;
mod caching;
mod carrying;
mod classifying;
mod completing;
mod dropping;
mod duplicates;
mod giving_up;
mod leaving;
mod losing;
mod orders;
mod outages;
mod outcomes;
mod panics;
mod refusals;
mod renewing;
mod replies;
mod sharing;
mod simulation;
mod turns;
mod waiting;
mod world;
