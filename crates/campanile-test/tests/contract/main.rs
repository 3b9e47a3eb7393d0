//! The contract suite: stores that keep it pass, and stores that do not are caught, each by the
//! promise that it breaks.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod broken;
mod kept;
