//! The promises of the layer and its keeper, on paused time, over a store with faults.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod acquiring;
mod classifying;
mod completing;
mod giving_up;
mod losing;
mod outcomes;
mod panics;
mod refusals;
mod renewing;
mod waiting;
mod world;
