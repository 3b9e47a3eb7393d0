//! The result of a contestant's run.

use serde::{Deserialize, Serialize};

/// The last line printed by a child process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// Records finished within `seconds`.
    pub(crate) records: u64,
    /// Time from the first record received to the last record finished.
    pub(crate) seconds: f64,
    /// Processor time of the process in that time, per record.
    pub(crate) cpu_us: f64,
    /// Processor time of Redis and of the broker in that time, per record.
    pub(crate) redis_us: f64,
    pub(crate) broker_us: f64,
    /// Wake-ups of all threads of the process in that time, per record.
    pub(crate) wake_ups: f64,
    /// Peak resident memory minus the resident memory before serving.
    pub(crate) rss_mib: f64,
    /// Calls of the handler.
    pub(crate) handled: u64,
    /// Calls of the handler with a key that it had already seen.
    pub(crate) repeated: u64,
    /// Records that did not reach the handler because their key was known.
    pub(crate) duplicates: u64,
    /// Calls of the handler after a call for a later record of the partition.
    pub(crate) reordered: u64,
    /// Latency from producing a record to its completion, if measured.
    pub(crate) latency: Option<Latency>,
}

/// Quantiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Measurement {
    /// Processor time of all three processes per record: the figure that depends least on the machine.
    pub(crate) fn all_us(&self) -> f64 {
        self.cpu_us + self.redis_us + self.broker_us
    }

    /// Records per second.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}
