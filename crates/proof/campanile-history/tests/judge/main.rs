//! The format, and the judge.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod agreement;
mod documentation;
mod forged;
mod fuzz;
mod generated;
mod mutations;
mod random;
mod reading;
mod second;
mod simulator;
mod verdict;
