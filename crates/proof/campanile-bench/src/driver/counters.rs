//! The counters of a run, and its handler.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use campanile::{BoxError, lock::Clock};
use tokio::sync::Notify;

use super::latency::Latencies;
use super::ledger::{Effect, Ledger};
use super::measurement::Measurement;
use super::task::Task;
use super::usage::{Usage, peak, resident};

/// The clock is read once per this number of records.
const RECORDS_PER_CLOCK_CHECK: u64 = 32;

/// How long the requests of handlers take to their receiver, in turns, so that handlers do not run
/// in step.
pub(super) const REQUEST_TIMES: [Duration; 2] =
    [Duration::from_millis(1), Duration::from_millis(2)];
/// How long the responses take.
pub(super) const RESPONSE_TIME: Duration = Duration::from_millis(1);

/// Counts a contestant's work, and ends its run.
pub(super) struct Counters {
    records: u64,
    servers: [u32; 2],
    limit: Duration,
    handler_time: Duration,
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
    ledger: Option<Ledger>,
    latencies: Option<Latencies>,
}

impl Counters {
    /// Create this last before serving: the memory resident at this point is the baseline of the
    /// peak.
    ///
    /// # Errors
    /// Fails if the ledger cannot be opened.
    pub(super) fn new(task: &Task) -> Result<Self, BoxError> {
        let zeros = |n: u64| (0..n).map(|_| AtomicU8::new(0)).collect();
        Ok(Self {
            records: task.records,
            servers: task.servers,
            limit: task.limit,
            handler_time: task.handler_time,
            clock: Clock::boot(),
            done: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            calls: zeros(if task.ledger.is_none() { task.records } else { 0 }),
            last_of_partition: (0..task.partitions).map(|_| AtomicI64::new(-1)).collect(),
            first: OnceLock::new(),
            result: OnceLock::new(),
            ended: Notify::new(),
            ledger: task.ledger.as_deref().map(Ledger::open).transpose()?,
            latencies: task.timed.then(|| Latencies::new(task)),
            idle: resident(),
        })
    }

    /// Counts a record as received.
    pub(super) fn record_received(&self) {
        self.first.get_or_init(|| Usage::now(self.servers));
    }

    /// The handler. A key ends with the record's number.
    ///
    /// With a ledger, sends a request to another service: the effect takes place when the request
    /// arrives, and the handler ends when it has the response. Otherwise, waits for the handler time
    /// of its topic, and counts.
    ///
    /// # Errors
    /// Fails if the key does not end with a number, or if the ledger cannot be written.
    pub(super) async fn handle(
        &self,
        key: &str,
        partition: i32,
        offset: i64,
        payload: Option<&[u8]>,
    ) -> Result<(), BoxError> {
        let number: u64 = key.rsplit('/').next().unwrap_or_default().parse()?;
        match &self.ledger {
            Some(ledger) => {
                tokio::time::sleep(REQUEST_TIMES[number as usize % REQUEST_TIMES.len()]).await;
                ledger.append(Effect { number, partition, offset })?;
                tokio::time::sleep(RESPONSE_TIME).await;
            }
            None => {
                if !self.handler_time.is_zero() {
                    tokio::time::sleep(self.handler_time).await;
                }
                self.count(number, partition, offset)?;
            }
        }
        match &self.latencies {
            Some(latencies) => latencies.add(payload),
            None => Ok(()),
        }
    }

    /// Counts a call of the handler, and checks the order within the partition.
    fn count(&self, number: u64, partition: i32, offset: i64) -> Result<(), BoxError> {
        self.handled.fetch_add(1, Relaxed);
        if self.calls.get(number as usize).ok_or("an unknown key")?.fetch_add(1, Relaxed) > 0 {
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
        let result = self.result.get().ok_or("the run stopped before its end")?.clone();
        let latency = self.latencies.as_ref().map(Latencies::quantiles).transpose()?;
        Ok(Measurement { latency, ..result })
    }

    fn result(&self) -> Measurement {
        let records = self.done.load(Relaxed);
        let (last, each) = (Usage::now(self.servers), records.max(1) as f64);
        let first = self.first.get().copied().unwrap_or(last);
        let server_us =
            |index: usize| (last.servers[index] - first.servers[index]).as_secs_f64() * 1e6 / each;
        Measurement {
            records,
            seconds: (last.at - first.at).as_secs_f64(),
            cpu_us: (last.cpu - first.cpu).as_secs_f64() * 1e6 / each,
            redis_us: server_us(0),
            broker_us: server_us(1),
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
