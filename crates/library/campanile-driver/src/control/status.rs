//! The state of the driver that handles can read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::rebalance::TopicPartition;
use crate::source::{Assignment, AssignmentId};
use crate::status::{
    ConsumerStage, PartitionStatus, Status, StoppedPartition, UnavailableDependency,
};
use crate::summary::{Summary, SummaryCounters};

/// The value for no time.
const NO_TIME: u64 = u64::MAX;

/// The state of the driver, updated where it changes and read by handles.
pub(crate) struct DriverStatus {
    stage: AtomicU8,
    /// The assigned partitions.
    assignments: Mutex<Vec<Arc<Assignment>>>,
    start: Instant,
    /// When the driver was last polled.
    last_poll: AtomicU64,
    /// When the pending ping was sent to the program's runtime.
    ping_sent: AtomicU64,
    /// Whether the group has made an assignment, even an empty one, that was not lost since.
    assigned: AtomicBool,
    store_down: AtomicBool,
    /// Whether only a new client could connect.
    pub(crate) stale_certificate: AtomicBool,
    /// Since when each partition's oldest unfinished record has been the oldest.
    oldest: Mutex<HashMap<AssignmentId, Instant>>,
    unavailable: Mutex<Vec<UnavailableDependency>>,
    max_poll_interval: Duration,
    /// The counters of all partitions that were ever assigned.
    counters: Mutex<HashMap<TopicPartition, Arc<SummaryCounters>>>,
}

impl DriverStatus {
    /// Creates the state of a driver that is starting. `max_poll_interval` is the maximum time between
    /// two polls of the driver.
    pub(crate) fn new(max_poll_interval: Duration) -> Self {
        Self {
            stage: AtomicU8::new(ConsumerStage::Starting as u8),
            assignments: Mutex::default(),
            start: Instant::now(),
            last_poll: AtomicU64::new(NO_TIME),
            ping_sent: AtomicU64::new(NO_TIME),
            assigned: AtomicBool::new(false),
            store_down: AtomicBool::new(false),
            stale_certificate: AtomicBool::new(false),
            oldest: Mutex::default(),
            unavailable: Mutex::default(),
            max_poll_interval,
            counters: Mutex::default(),
        }
    }

    pub(crate) fn stage(&self) -> ConsumerStage {
        ConsumerStage::ALL[usize::from(self.stage.load(Ordering::Acquire))]
    }

    /// Enters a stage, unless a later stage was entered already.
    pub(crate) fn enter_stage(&self, stage: ConsumerStage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    /// Notes that the driver is polled.
    pub(crate) fn record_poll(&self) {
        self.last_poll.store(self.now(), Ordering::Relaxed);
    }

    /// Starts a ping of the program's runtime, unless the last ping is still unanswered.
    pub(crate) fn start_ping(&self) -> bool {
        let is_idle = self.ping_sent.load(Ordering::Acquire) == NO_TIME;
        if is_idle {
            self.ping_sent.store(self.now(), Ordering::Release);
        }
        is_idle
    }

    /// Notes that the program's runtime answered the ping.
    pub(crate) fn finish_ping(&self) {
        self.ping_sent.store(NO_TIME, Ordering::Release);
    }

    /// Updates whether the store is unavailable, what else is, and since when each partition's oldest
    /// unfinished record has been the oldest.
    pub(crate) fn update(
        &self,
        store_down: bool,
        unavailable: Vec<UnavailableDependency>,
        oldest: HashMap<AssignmentId, Instant>,
    ) {
        *lock(&self.oldest) = oldest;
        *lock(&self.unavailable) = unavailable;
        self.store_down.store(store_down, Ordering::Relaxed);
    }

    /// Measures the time since the last poll of the driver, if there was one.
    pub(crate) fn since_last_poll(&self) -> Option<Duration> {
        self.since(&self.last_poll)
    }

    pub(crate) fn max_poll_interval(&self) -> Duration {
        self.max_poll_interval
    }

    /// Measures how long the program's runtime has left a ping unanswered, if one is pending.
    pub(crate) fn pending_ping_age(&self) -> Option<Duration> {
        self.since(&self.ping_sent)
    }

    /// Checks whether the client does not fetch a partition any more.
    pub(crate) fn is_unfetched(&self) -> bool {
        let is_unfetched = |it: &Arc<Assignment>| it.is_unfetched() && !it.is_revoked();
        self.assignments().iter().any(is_unfetched)
    }

    /// Checks whether a partition was assigned at least this long ago and is not started yet.
    pub(crate) fn is_start_overdue(&self, after: Duration) -> bool {
        let is_overdue = |assignment: &Arc<Assignment>| {
            let is_started = assignment.offset_range.position().is_some();
            !is_started && !assignment.is_revoked() && assignment.assigned_at.elapsed() >= after
        };
        self.assignments().iter().any(is_overdue)
    }

    pub(crate) fn is_assigned(&self) -> bool {
        self.assigned.load(Ordering::Relaxed)
    }

    pub(crate) fn is_store_unavailable(&self) -> bool {
        self.store_down.load(Ordering::Relaxed)
    }

    /// Adds partitions that the group has assigned, or the new assignment of a partition after
    /// the old one was revoked.
    pub(crate) fn assign(&self, assignments: &[Arc<Assignment>]) {
        let mut all = self.assignments();
        all.retain(|assignment| !assignment.is_revoked());
        all.extend(assignments.iter().cloned());
        self.assigned.store(true, Ordering::Relaxed);
    }

    /// Removes revoked partitions. With `lost`, the group's assignment was lost.
    pub(crate) fn revoke(&self, lost: bool) {
        self.assignments().retain(|assignment| !assignment.is_revoked());
        if lost {
            self.assigned.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that serving has ended.
    pub(crate) fn end(&self) {
        self.enter_stage(ConsumerStage::Ended);
        self.assignments().clear();
        lock(&self.unavailable).clear();
    }

    /// Returns the counters of a partition, which outlive its assignment.
    pub(crate) fn counters_of(&self, assignment: &Arc<Assignment>) -> Arc<SummaryCounters> {
        lock(&self.counters).entry(assignment.into()).or_default().clone()
    }

    /// Adds up the counters of all partitions.
    pub(crate) fn summary(&self) -> Summary {
        lock(&self.counters).values().map(|counters| counters.summary()).sum()
    }

    pub(crate) fn snapshot(&self) -> Status {
        let oldest = lock(&self.oldest).clone();
        let of = |assignment: &Arc<Assignment>| {
            let mark = assignment.watermark();
            PartitionStatus {
                topic: assignment.topic.clone(),
                partition: assignment.partition,
                watermark: mark,
                lag: assignment.offset_range.lag(mark),
                buffered: assignment.usage.total().records,
                oldest_age: oldest.get(&assignment.id).map(Instant::elapsed),
                stopped: assignment
                    .stopped_at()
                    .map(|(offset, since)| StoppedPartition { offset, elapsed: since.elapsed() }),
                paused: assignment.is_paused(),
                summary: self.counters_of(assignment).summary(),
            }
        };
        let stage = self.stage();
        let mut partitions: Vec<_> = self.assignments().iter().map(of).collect();
        partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let unavailable = lock(&self.unavailable).clone();
        Status { stage, partitions, unavailable, summary: self.summary() }
    }

    pub(crate) fn assignments(&self) -> MutexGuard<'_, Vec<Arc<Assignment>>> {
        lock(&self.assignments)
    }

    /// Counts the milliseconds since `start`.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn since(&self, at: &AtomicU64) -> Option<Duration> {
        let at = at.load(Ordering::Acquire);
        (at != NO_TIME).then(|| Duration::from_millis(self.now().saturating_sub(at)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
