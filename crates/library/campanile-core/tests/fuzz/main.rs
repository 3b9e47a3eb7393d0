//! Fuzz targets: what stores, producers and users can send. `cargo xtask fuzz` explores them, and as
//! tests they repeat what it has found.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod entry;
mod payload;
mod texts;
