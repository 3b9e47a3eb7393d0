//! Entries: read, listed, counted, repaired, and explained.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod explain;
mod list;
mod planter;
mod purge;
mod repair;
mod report;
