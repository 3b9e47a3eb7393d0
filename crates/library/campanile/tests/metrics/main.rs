//! The metrics, as an exporter for Prometheus shows them.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod consumer;
mod layer;
mod observing;
mod scrape;
mod stores;
mod table;
