//! One assignment of one partition: the state that source, scheduler and status share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::time::Instant;

use crate::source::lag::OffsetRange;
use crate::source::offset::AtomicOffset;
use crate::source::{Delay, Sink, Usage};

/// Identifies an assignment. A partition that is revoked and assigned again gets another ID, so that late
/// reports about the old assignment are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AssignmentId(pub(crate) u64);

/// One assignment of one partition.
///
/// The driver's thread and the source share it, behind an [`Arc`].
pub struct Assignment {
    /// Identifies this assignment.
    pub id: AssignmentId,
    /// The topic.
    pub topic: Arc<str>,
    /// The number of the partition.
    pub partition: i32,
    /// When the partition was assigned.
    pub assigned_at: Instant,
    /// The delay of the partition's records, if they wait before they are started.
    pub delay: Option<Delay>,
    /// The memory that the partition's records take, and what they hand over.
    pub usage: Arc<Usage>,
    /// The memory that those of all partitions take.
    pub total: Arc<Usage>,
    /// Which offsets were read, and where the log ends.
    pub offset_range: OffsetRange,
    /// The id of the log that the partition was started with: its offsets mean nothing in another log. The
    /// id of the topic, which changes when the topic is recreated. Empty if the brokers have no ids.
    pub log_id: OnceLock<Arc<str>>,
    /// The id of the cluster that has the log, if it is known.
    pub cluster_id: OnceLock<Arc<str>>,
    /// The id of the log that the group was reading before, if this one has replaced it. This one is then
    /// read from its beginning.
    pub replaced_log_id: OnceLock<Arc<str>>,
    /// The leader epoch of the last record that was read, or of the committed offset before that. Negative
    /// if it is not known.
    leader_epoch: AtomicI32,
    /// What the partition's records hand over, if they do.
    sink: Option<Box<dyn Sink>>,
    watermark: AtomicOffset,
    committed: AtomicOffset,
    revoked: AtomicBool,
    log_lost: AtomicBool,
    closed: AtomicBool,
    unfetched: AtomicBool,
    stopped: AtomicBool,
    /// The first record at which the partition was stopped, by offset, and when.
    stopped_at: Mutex<Option<(i64, Instant)>>,
    paused: AtomicBool,
}

impl Assignment {
    pub(crate) fn new(topic: Arc<str>, partition: i32, total: Arc<Usage>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: AssignmentId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            topic,
            partition,
            assigned_at: Instant::now(),
            delay: None,
            usage: Arc::default(),
            total,
            offset_range: OffsetRange::new(),
            log_id: OnceLock::new(),
            cluster_id: OnceLock::new(),
            replaced_log_id: OnceLock::new(),
            leader_epoch: AtomicI32::new(-1),
            sink: None,
            watermark: AtomicOffset::none(),
            committed: AtomicOffset::none(),
            revoked: AtomicBool::new(false),
            log_lost: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unfetched: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            stopped_at: Mutex::default(),
            paused: AtomicBool::new(false),
        }
    }

    /// This is the offset to commit: all records below it are finished, or were never to be read.
    /// `None` while there is nothing to commit.
    pub(crate) fn watermark(&self) -> Option<i64> {
        self.watermark.load()
    }

    /// Delays the partition's records.
    pub fn with_delay(mut self, delay: Delay) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Adds a sink for what the partition's records hand over.
    pub fn with_sink(mut self, sink: impl Sink) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Returns the sink, if there is one.
    pub fn sink(&self) -> Option<&dyn Sink> {
        self.sink.as_deref()
    }

    /// Moves the watermark.
    pub fn advance(&self, watermark: i64) {
        match self.sink() {
            Some(sink) => sink.advance(watermark, &|| self.set_watermark(watermark)),
            None => self.set_watermark(watermark),
        }
    }

    /// Notes that the partition is given up: nothing more is committed for it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.sink().inspect(|sink| sink.close());
    }

    /// Checks whether the partition is given up.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn set_watermark(&self, offset: i64) {
        self.watermark.store(Some(offset));
    }

    /// Clears the watermark, since the partition's position was reset.
    pub(crate) fn clear_watermark(&self) {
        self.watermark.store(None);
    }

    /// Reads the committed offset that the brokers acknowledged last.
    pub fn committed(&self) -> Option<i64> {
        self.committed.load()
    }

    /// Sets the committed offset that the brokers acknowledged.
    pub fn set_committed(&self, offset: i64) {
        self.committed.store(Some(offset));
    }

    /// Forgets the committed offset and what was handed over by records from this offset on, since the
    /// position was reset to it and these records are delivered again.
    pub fn reset(&self, offset: i64) {
        self.committed.store(None);
        self.sink().inspect(|sink| sink.reset(offset));
    }

    /// Reads the watermark if it is not committed yet and belongs to the partition's log.
    pub fn uncommitted(&self) -> Option<i64> {
        let watermark = self.watermark().filter(|_| !self.is_log_lost())?;
        (Some(watermark) != self.committed()).then_some(watermark)
    }

    /// Checks whether the partition has another log by now.
    pub fn is_log_lost(&self) -> bool {
        self.log_lost.load(Ordering::Acquire)
    }

    /// Notes that the partition has another log by now, so that nothing more is committed.
    pub fn lose_log(&self) {
        self.log_lost.store(true, Ordering::Release);
    }

    /// Checks whether the client does not fetch the partition any more, although there are records.
    pub fn is_unfetched(&self) -> bool {
        self.unfetched.load(Ordering::Relaxed)
    }

    /// Sets whether the client does not fetch the partition any more. Then the consumer is not live.
    pub fn set_unfetched(&self, unfetched: bool) {
        self.unfetched.store(unfetched, Ordering::Relaxed);
    }

    /// Returns the id of the partition's log, if the brokers have ids.
    pub fn log_id(&self) -> Option<&Arc<str>> {
        self.log_id.get().filter(|id| !id.is_empty())
    }

    /// Returns the epoch of the leader that has appended the records up to the position, if it is known.
    pub fn leader_epoch(&self) -> Option<i32> {
        Some(self.leader_epoch.load(Ordering::Relaxed)).filter(|epoch| *epoch >= 0)
    }

    /// Sets this epoch.
    pub fn set_leader_epoch(&self, epoch: Option<i32>) {
        self.leader_epoch.store(epoch.unwrap_or(-1), Ordering::Relaxed);
    }

    /// Checks whether the partition is revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Marks the partition as revoked.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// No further record of a stopped partition may be started.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops starting records of the partition.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Stops starting records of the partition, because of the record at this offset.
    pub(crate) fn stop_at(&self, offset: i64) {
        let mut stopped_at = self.stopped_at.lock().unwrap_or_else(PoisonError::into_inner);
        if stopped_at.is_none_or(|(first, _)| offset < first) {
            *stopped_at = Some((offset, Instant::now()));
        }
        self.stop();
    }

    /// Reads the offset of the first record at which the partition was stopped, and when that was.
    pub(crate) fn stopped_at(&self) -> Option<(i64, Instant)> {
        *self.stopped_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the partition or its topic is paused through a handle.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

impl fmt::Debug for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Assignment({self}, {:?})", self.id)
    }
}
