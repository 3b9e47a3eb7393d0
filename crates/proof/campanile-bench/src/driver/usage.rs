//! The resource usage of this process so far.

use std::fs;
use std::time::Duration;

use campanile::lock::Clock;
use rustix::time::{ClockId, clock_gettime};

use crate::redis::cpu::of_pid;

/// A reading of the clock, the processor time and the waits of all threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) at: Duration,
    /// User and system time of the process.
    pub(super) cpu: Duration,
    /// Processor time of Redis and of the broker.
    pub(super) servers: [Duration; 2],
    /// Voluntary context switches: each is a wait that ends with a wake-up.
    pub(super) waits: u64,
}

impl Usage {
    pub(super) fn now(servers: [u32; 2]) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            at: Clock::boot().now(),
            cpu: Duration::new(cpu.tv_sec.unsigned_abs(), cpu.tv_nsec.unsigned_abs() as u32),
            servers: servers.map(|pid| of_pid(pid).unwrap_or_default()),
            waits: waits(),
        }
    }
}

/// Reads the resident memory in bytes.
pub(super) fn resident() -> u64 {
    1024 * field("/proc/self/status", "VmRSS:")
}

/// Reads the peak resident memory in bytes.
pub(crate) fn peak() -> u64 {
    1024 * field("/proc/self/status", "VmHWM:")
}

/// Sums the waits of the live threads. No contestant ends a thread while it is measured.
fn waits() -> u64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0 };
    threads
        .flatten()
        .map(|thread| field(thread.path().join("status"), "voluntary_ctxt_switches:"))
        .sum()
}

/// Reads a number from a `status` file; 0 if it is missing.
fn field(file: impl AsRef<std::path::Path>, name: &str) -> u64 {
    let status = fs::read_to_string(file).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
