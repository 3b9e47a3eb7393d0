//! The counters of a run, and its handler.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use campanile::{BoxError, lock::Clock};
use tokio::sync::Notify;

use super::measurement::Measurement;
use super::task::Task;
use super::usage::{Usage, peak, resident};

/// The clock is read once per this number of records.
const RECORDS_PER_CLOCK_CHECK: u64 = 32;

/// Counts a contestant's work, and ends its run.
pub(super) struct Counters {
    records: u64,
    limit: Duration,
    clock: Clock,
    idle: u64,
    done: AtomicU64,
    handled: AtomicU64,
    repeated: AtomicU64,
    duplicates: AtomicU64,
    reordered: AtomicU64,
    calls: Vec<AtomicU8>,
    last_of_partition: Vec<AtomicI64>,
    first: OnceLock<Usage>,
    result: OnceLock<Measurement>,
    ended: Notify,
}

impl Counters {
    /// Create this last before serving: the memory resident at this point is the baseline of the
    /// peak.
    pub(super) fn new(task: &Task) -> Self {
        let zeros = |n: u64| (0..n).map(|_| AtomicU8::new(0)).collect();
        Self {
            records: task.records,
            limit: task.limit,
            clock: Clock::boot(),
            done: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            calls: zeros(task.records),
            last_of_partition: (0..task.partitions).map(|_| AtomicI64::new(-1)).collect(),
            first: OnceLock::new(),
            result: OnceLock::new(),
            ended: Notify::new(),
            idle: resident(),
        }
    }

    /// Counts a record as received.
    pub(super) fn record_received(&self) {
        self.first.get_or_init(Usage::now);
    }

    /// The handler: counts the call, and checks the order within the partition. A key ends with the
    /// record's number.
    ///
    /// # Errors
    /// Fails if the key does not end with such a number.
    pub(super) fn handle(&self, key: &str, partition: i32, offset: i64) -> Result<(), BoxError> {
        let number: usize = key.rsplit('/').next().unwrap_or_default().parse()?;
        self.handled.fetch_add(1, Relaxed);
        if self.calls.get(number).ok_or("an unknown key")?.fetch_add(1, Relaxed) > 0 {
            self.repeated.fetch_add(1, Relaxed);
        }
        let last = &self.last_of_partition[partition as usize];
        if last.fetch_max(offset, Relaxed) > offset {
            self.reordered.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Counts a duplicate: the record's key is known, so the handler is not called.
    pub(super) fn record_duplicate(&self) {
        self.duplicates.fetch_add(1, Relaxed);
    }

    /// Counts a record as finished. The run ends with the last record or when its time is up.
    pub(super) fn record_finished(&self) {
        let done = self.done.fetch_add(1, Relaxed) + 1;
        let last = done == self.records;
        let is_time_up = || {
            let since = self.first.get().map(|first| first.at).unwrap_or_default();
            self.clock.now() - since >= self.limit
        };
        if last
            || (done.is_multiple_of(RECORDS_PER_CLOCK_CHECK)
                && self.result.get().is_none()
                && is_time_up())
        {
            self.end();
        }
    }

    /// Ends the run.
    pub(super) fn end(&self) {
        self.result.get_or_init(|| self.result());
        self.ended.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.result.get().is_some()
    }

    /// Waits for the end of the run. Supports only one waiter.
    pub(super) async fn wait_until_ended(&self) {
        self.ended.notified().await;
    }

    /// Reads the result of the run.
    ///
    /// # Errors
    /// Fails if the run has not ended.
    pub(super) fn measurement(&self) -> Result<Measurement, BoxError> {
        Ok(self.result.get().ok_or("the run stopped before its end")?.clone())
    }

    fn result(&self) -> Measurement {
        let records = self.done.load(Relaxed);
        let (last, each) = (Usage::now(), records.max(1) as f64);
        let first = self.first.get().copied().unwrap_or(last);
        Measurement {
            records,
            seconds: (last.at - first.at).as_secs_f64(),
            cpu_us: (last.cpu - first.cpu).as_secs_f64() * 1e6 / each,
            wake_ups: last.waits.saturating_sub(first.waits) as f64 / each,
            rss_mib: peak().saturating_sub(self.idle) as f64 / (1024.0 * 1024.0),
            handled: self.handled.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            reordered: self.reordered.load(Relaxed),
            latency: None,
        }
    }
}
