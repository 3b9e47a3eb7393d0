//! What the driver and the idempotency layer tell each other about an attempt at a record.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use super::{AwaitsTurn, Interrupt, LockReleased, Record};
use crate::wakers::Wakers;

/// The state of an attempt. It has its place in the record, so that no attempt needs memory of its own.
#[derive(Default)]
pub(super) struct AttemptState {
    interrupted: AtomicBool,
    pub(super) progress: AttemptProgress,
    /// Whether the record has waited for the lock of another process.
    waited_elsewhere: AtomicBool,
    /// Whether an attempt counts although a dependency is unavailable.
    unavailable_denied: AtomicBool,
    /// The number of [`Interrupt`]s.
    pub(super) interrupts: AtomicUsize,
    pub(super) wakers: Wakers,
}

/// The driver's attempt at a record, which the layer takes part in.
#[derive(Clone, Copy)]
pub struct Attempt<'a>(&'a Record);

impl<'a> Attempt<'a> {
    pub(super) fn new(record: &'a Record) -> Self {
        Self(record)
    }

    fn state(self) -> &'a AttemptState {
        &self.0.0.attempt
    }

    /// Starts the attempt, possibly ahead of the record's turn. Called by the driver.
    pub fn start(self, ahead: bool) {
        self.state().interrupted.store(false, Ordering::Release);
        self.state().progress.start(ahead);
    }

    /// Checks whether the record was started ahead of its turn and still waits for it.
    pub fn is_ahead(self) -> bool {
        self.state().progress.is_ahead()
    }

    /// Checks whether the handler has succeeded and the store is about to record the completion.
    pub fn is_recording(self) -> bool {
        self.state().progress.is(RECORDING)
    }

    /// Checks whether the record may take long: its handler is running, it waits for its lock, or a
    /// layer has returned an error, after which middleware may call the layer again.
    pub fn is_processing(self) -> bool {
        self.state().progress.is(PROCESSING)
    }

    /// Marks the record as processing. Called by the layer.
    pub fn set_processing(self) {
        self.state().progress.set(PROCESSING);
    }

    /// Checks whether the record was answered as a duplicate, without running the handler.
    pub fn is_duplicate(self) -> bool {
        self.state().progress.is(DUPLICATE)
    }

    /// Checks whether the record is a duplicate, if it is ahead of its turn and the layer waits for that.
    pub fn is_duplicate_ahead(self) -> Option<bool> {
        self.state().progress.is_duplicate_ahead()
    }

    /// Creates a future that resolves when the layer waits for the record's turn.
    pub fn awaits_turn(self) -> AwaitsTurn {
        AwaitsTurn::new(self.0.clone())
    }

    /// Begins the record's turn. Called by the driver.
    pub fn begin_turn(self) {
        if self.is_ahead() {
            self.state().progress.start(false);
            self.state().wakers.wake_all();
        }
    }

    /// Marks any later drop of this record's future as an interruption and not a failure. The
    /// driver calls this before it drops the future on a revoke or shutdown.
    pub fn set_interrupted(self) {
        self.state().interrupted.store(true, Ordering::Release);
        self.state().wakers.wake_all();
    }

    pub(super) fn is_interrupted(self) -> bool {
        self.state().interrupted.load(Ordering::Acquire)
    }

    /// The layer observes interruptions through this handle.
    pub fn interrupt(self) -> Interrupt {
        Interrupt::new(self.0.clone())
    }

    /// Notes that another process holds the lock of the record's key. Called by the layer.
    pub fn set_waited_elsewhere(self) {
        self.state().waited_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Checks whether an attempt at this record has found its lock held by another process.
    pub fn has_waited_elsewhere(self) -> bool {
        self.state().waited_elsewhere.load(Ordering::Relaxed)
    }

    /// Makes each further attempt count, also if a dependency is unavailable. Called by the driver.
    pub fn deny_unavailable(self) {
        self.state().unavailable_denied.store(true, Ordering::Relaxed);
    }

    /// Checks whether an attempt counts although a dependency is unavailable.
    pub fn is_unavailable_denied(self) -> bool {
        self.state().unavailable_denied.load(Ordering::Relaxed)
    }

    /// Creates a future that resolves when the record's lock is released. The driver awaits it
    /// after it has dropped the record's future.
    pub fn lock_released(self) -> LockReleased {
        LockReleased::new(self.0.clone())
    }
}

impl fmt::Debug for Attempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({})", self.0.coordinates())
    }
}

/// The progress of an attempt.
#[derive(Default)]
pub(super) struct AttemptProgress(AtomicU8);

const STARTED: u8 = 0;
const AHEAD: u8 = 1;
const AHEAD_DUPLICATE: u8 = 2;
const AHEAD_UNPROCESSED: u8 = 3;
pub(super) const RECORDING: u8 = 4;
pub(super) const DUPLICATE: u8 = 5;
const PROCESSING: u8 = 6;

impl AttemptProgress {
    fn start(&self, ahead: bool) {
        self.set(if ahead { AHEAD } else { STARTED });
    }

    pub(super) fn set(&self, progress: u8) {
        self.0.store(progress, Ordering::Release);
    }

    fn is(&self, progress: u8) -> bool {
        self.0.load(Ordering::Acquire) == progress
    }

    fn is_ahead(&self) -> bool {
        is_ahead(self.0.load(Ordering::Acquire))
    }

    /// Sets whether the record is a duplicate, if it is ahead of its turn. Returns whether it is.
    pub(super) fn set_awaits_turn(&self, duplicate: bool) -> bool {
        let awaits = if duplicate { AHEAD_DUPLICATE } else { AHEAD_UNPROCESSED };
        let set = |progress| is_ahead(progress).then_some(awaits);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).is_ok()
    }

    fn is_duplicate_ahead(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) {
            AHEAD_DUPLICATE => Some(true),
            AHEAD_UNPROCESSED => Some(false),
            _ => None,
        }
    }
}

fn is_ahead(progress: u8) -> bool {
    matches!(progress, AHEAD | AHEAD_DUPLICATE | AHEAD_UNPROCESSED)
}
