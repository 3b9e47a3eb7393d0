//! What one run of a contestant gave.

use serde::{Deserialize, Serialize};

/// The line that a child process prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Finished within `seconds`.
    pub(crate) records: u64,
    /// From the first record received to the last one finished.
    pub(crate) seconds: f64,
    /// The processor time of the process in that time, for each record.
    pub(crate) cpu_us: f64,
    /// The wake-ups of all threads of the process in that time, for each record.
    pub(crate) wake_ups: f64,
    /// The peak of the resident memory over what there was before serving.
    pub(crate) rss_mib: f64,
    /// Calls of the handler.
    pub(crate) handled: u64,
    /// Calls of the handler with a key that it had been called with.
    pub(crate) repeated: u64,
    /// Records that did not reach the handler, because their key was known.
    pub(crate) duplicates: u64,
    /// Calls of the handler after that of a later record of the partition.
    pub(crate) reordered: u64,
    /// From the production of a record to its completion; only where that is measured.
    pub(crate) latency: Option<Latency>,
}

/// Quantiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Measured {
    /// Records per second.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}
