//! The format, and the judge.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod documentation;
mod forged;
mod generated;
mod reading;
mod simulator;
