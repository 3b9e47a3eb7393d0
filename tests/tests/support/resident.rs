//! What a consumer process has in memory, and may have.

use std::fs;

use campanile_test::Process;

/// What the consumer may keep by default, and what others share beyond it while some stand still.
pub(crate) const BUDGET: u64 = 32 + 8;
/// What librdkafka prefetches: its queue, and a response on its way in and on its way out of it.
const PREFETCH: u64 = 8 + 2 * 2;
/// What the allocator keeps of what was freed, and the work itself takes.
const SLACK: u64 = 12;
/// More than when it is idle, in MiB.
pub(crate) const MOST: u64 = BUDGET + PREFETCH + SLACK;

/// What is resident of a process, in MiB.
pub(crate) struct Memory {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn of(process: &Process) -> Self {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
        let mib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
        };
        Self { now: mib("VmRSS:"), peak: mib("VmHWM:") }
    }
}
