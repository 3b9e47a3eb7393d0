//! What the handles can see of the intake and of the dispatcher.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::slot::{Slot, SlotId};
use crate::status::{PartitionStatus, Stage, Status};

/// Nothing.
const NONE: u64 = u64::MAX;

/// Written where something happens, and read by handles.
pub(crate) struct Vitals {
    stage: AtomicU8,
    /// The partitions that are assigned.
    slots: Mutex<Vec<Arc<Slot>>>,
    origin: Instant,
    /// When the consumer's thread began its last round.
    round: AtomicU64,
    /// When the tick was sent that the dispatcher has not answered.
    asked: AtomicU64,
    /// Whether the group has assigned partitions, if only none, and they were not lost since.
    assigned: AtomicBool,
    store_down: AtomicBool,
    /// Since when each partition's oldest unfinished record has been that.
    oldest: Mutex<HashMap<SlotId, Instant>>,
    longest_round: Duration,
}

impl Vitals {
    /// With the longest round that the consumer's thread may take.
    pub(crate) fn new(longest_round: Duration) -> Self {
        Self {
            stage: AtomicU8::new(Stage::Starting as u8),
            slots: Mutex::default(),
            origin: Instant::now(),
            round: AtomicU64::new(NONE),
            asked: AtomicU64::new(NONE),
            assigned: AtomicBool::new(false),
            store_down: AtomicBool::new(false),
            oldest: Mutex::default(),
            longest_round,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Ordering::Acquire))]
    }

    /// It is there now, or later already.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    /// By the consumer's thread: it works.
    pub(crate) fn round(&self) {
        self.round.store(self.now(), Ordering::Relaxed);
    }

    /// By the consumer's thread: whether the dispatcher may be sent a tick, since it has answered
    /// the last one.
    pub(crate) fn ask(&self) -> bool {
        let free = self.asked.load(Ordering::Acquire) == NONE;
        if free {
            self.asked.store(self.now(), Ordering::Release);
        }
        free
    }

    /// By the dispatcher: it works, this is how the store does, and since when each partition's oldest
    /// unfinished record has been that.
    pub(crate) fn answer(&self, store_down: bool, oldest: HashMap<SlotId, Instant>) {
        *lock(&self.oldest) = oldest;
        self.store_down.store(store_down, Ordering::Relaxed);
        self.asked.store(NONE, Ordering::Release);
    }

    /// For how long the consumer's thread has not begun a round. `None` if it is not started.
    pub(crate) fn since_round(&self) -> Option<Duration> {
        self.since(&self.round)
    }

    pub(crate) fn longest_round(&self) -> Duration {
        self.longest_round
    }

    /// For how long the dispatcher has owed an answer.
    pub(crate) fn since_asked(&self) -> Option<Duration> {
        self.since(&self.asked)
    }

    pub(crate) fn is_assigned(&self) -> bool {
        self.assigned.load(Ordering::Relaxed)
    }

    pub(crate) fn is_store_down(&self) -> bool {
        self.store_down.load(Ordering::Relaxed)
    }

    /// The group has assigned these, beside those that are.
    pub(crate) fn assign(&self, slots: &[Arc<Slot>]) {
        self.slots().extend(slots.iter().cloned());
        self.assigned.store(true, Ordering::Relaxed);
    }

    /// Slots have ended.
    pub(crate) fn revoke(&self, lost: bool) {
        self.slots().retain(|slot| !slot.is_over());
        if lost {
            self.assigned.store(false, Ordering::Relaxed);
        }
    }

    /// Serving has ended.
    pub(crate) fn end(&self) {
        self.enter(Stage::Ended);
        self.slots().clear();
    }

    pub(crate) fn status(&self) -> Status {
        let oldest = lock(&self.oldest).clone();
        let of = |slot: &Arc<Slot>| {
            let mark = slot.mark();
            PartitionStatus {
                topic: slot.topic.clone(),
                partition: slot.partition,
                mark,
                lag: slot.extent.lag(mark),
                held: slot.stock.held().records,
                oldest: oldest.get(&slot.id).map(Instant::elapsed),
            }
        };
        let stage = self.stage();
        let mut partitions: Vec<_> = self.slots().iter().map(of).collect();
        partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Status { stage, partitions }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        lock(&self.slots)
    }

    /// Milliseconds since the origin.
    fn now(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }

    fn since(&self, at: &AtomicU64) -> Option<Duration> {
        let at = at.load(Ordering::Acquire);
        (at != NONE).then(|| Duration::from_millis(self.now().saturating_sub(at)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
