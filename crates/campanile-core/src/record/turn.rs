//! Between the driver, which starts a record ahead of its turn, and the layer, which waits for it.
//!
//! While the outcome of one record is being recorded, its handler has ended: the driver already starts the
//! next record of the same queue, and the layer acquires that one's lock with the same trip to the store.
//! Its handler waits until its turn has come, which is when the first record is processed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use super::Record;

/// How far the work on a record is.
#[derive(Default)]
pub(super) struct Progress(AtomicU8);

const IN_TURN: u8 = 0;
const AHEAD: u8 = 1;
const RECORDING: u8 = 2;
const DUPLICATE: u8 = 3;
const FAILED: u8 = 4;

impl Progress {
    pub(super) fn start(&self, ahead: bool) {
        self.0.store(if ahead { AHEAD } else { IN_TURN }, Ordering::Release);
    }

    pub(super) fn set_recording(&self) {
        self.0.store(RECORDING, Ordering::Release);
    }

    pub(super) fn is_recording(&self) -> bool {
        self.0.load(Ordering::Acquire) == RECORDING
    }

    pub(super) fn set_duplicate(&self) {
        self.0.store(DUPLICATE, Ordering::Release);
    }

    pub(super) fn set_failed(&self) {
        self.0.store(FAILED, Ordering::Release);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.0.load(Ordering::Acquire) == FAILED
    }

    pub(super) fn is_duplicate(&self) -> bool {
        self.0.load(Ordering::Acquire) == DUPLICATE
    }

    pub(super) fn is_ahead(&self) -> bool {
        self.0.load(Ordering::Acquire) == AHEAD
    }
}

/// Resolves when it is a record's turn, or its attempt is dropped. Not part of the public contract.
#[doc(hidden)]
pub struct Turn {
    record: Record,
    slot: Option<usize>,
}

impl Turn {
    pub(super) fn new(record: Record) -> Self {
        Self { record, slot: None }
    }

    /// Whether its attempt was dropped before its turn.
    pub fn is_cancelled(&self) -> bool {
        self.record.is_interrupted()
    }
}

impl Future for Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // First the waker, then the look: what happens in between finds the waker.
        this.record.0.wakers.register(&mut this.slot, cx.waker());
        let waits = this.record.is_ahead() && !this.is_cancelled();
        if waits { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.record.0.wakers.remove(slot);
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.record).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use crate::Record;

    #[test]
    fn record_that_is_ahead_waits_for_its_turn() {
        let record = Record::builder("t", 0, 0).build();
        assert!(record.interrupt().turn().is_none());
        record.start(true);
        let turn = record.interrupt().turn().expect("it is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.begin_turn();
        assert!(turn.is_woken());
        assert_ready!(turn.poll());
        assert!(record.interrupt().turn().is_none());
    }

    #[test]
    fn record_that_is_dropped_ahead_of_its_turn_waits_no_longer() {
        let record = Record::builder("t", 0, 0).build();
        record.start(true);
        let turn = record.interrupt().turn().expect("it is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.set_interrupted();
        assert!(turn.is_woken() && turn.is_cancelled());
        assert_ready!(turn.poll());
    }

    #[test]
    fn record_that_is_started_again_is_neither_recording_nor_interrupted() {
        let record = Record::builder("t", 0, 0).build();
        record.set_interrupted();
        record.interrupt().set_recording();
        assert!(record.is_recording() && record.interrupt().is_set());
        record.start(false);
        assert!(!record.is_recording() && !record.interrupt().is_set());
    }
}
