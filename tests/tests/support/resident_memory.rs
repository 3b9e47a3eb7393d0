//! The memory usage of a consumer process, and its bound.

use std::fs;

use campanile_test::Process;

/// The consumer's default budget, and the share of other partitions while some are stalled.
pub(crate) const BUDGET_MIB: u64 = 32 + 8;
/// librdkafka's prefetch: its queue, and the responses that are being received and consumed.
const PREFETCH_MIB: u64 = 8 + 2 * 2;
/// Freed memory retained by the allocator, and memory used by processing itself.
const SLACK_MIB: u64 = 12;
/// Maximum increase over the idle state, in MiB.
pub(crate) const MAX_INCREASE_MIB: u64 = BUDGET_MIB + PREFETCH_MIB + SLACK_MIB;

/// Resident memory of a process, in MiB.
pub(crate) struct ResidentMemory {
    pub(crate) current: u64,
    pub(crate) peak: u64,
}

impl ResidentMemory {
    pub(crate) fn of(process: &Process) -> Self {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
        let mib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
        };
        Self { current: mib("VmRSS:"), peak: mib("VmHWM:") }
    }
}
