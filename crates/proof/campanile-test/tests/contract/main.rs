//! Tests of the contract suite: it passes correct stores, and reports each broken store by the
//! promise that the store breaks.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod broken;
mod conforming;
