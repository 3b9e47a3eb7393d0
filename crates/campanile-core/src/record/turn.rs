//! Turns: when the handler of a record that was started ahead may run.
//!
//! While the store records the outcome of one record, the driver already starts the next record of the
//! same queue, and the layer acquires the next record's lock in the same round trip. Its handler waits
//! for the record's turn, which begins once the previous record is processed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use super::Record;
use crate::wakers::Watcher;

/// The progress of an attempt at a record.
#[derive(Default)]
pub(super) struct AttemptProgress(AtomicU8);

const STARTED: u8 = 0;
const AHEAD: u8 = 1;
const AHEAD_DUPLICATE: u8 = 2;
const AHEAD_UNPROCESSED: u8 = 3;
const RECORDING: u8 = 4;
const DUPLICATE: u8 = 5;
const PROCESSING: u8 = 6;

impl AttemptProgress {
    pub(super) fn start(&self, ahead: bool) {
        self.0.store(if ahead { AHEAD } else { STARTED }, Ordering::Release);
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

    pub(super) fn set_processing(&self) {
        self.0.store(PROCESSING, Ordering::Release);
    }

    pub(super) fn is_processing(&self) -> bool {
        self.0.load(Ordering::Acquire) == PROCESSING
    }

    pub(super) fn is_duplicate(&self) -> bool {
        self.0.load(Ordering::Acquire) == DUPLICATE
    }

    pub(super) fn is_ahead(&self) -> bool {
        is_ahead(self.0.load(Ordering::Acquire))
    }

    /// Sets whether the record is a duplicate, if it is ahead of its turn. Returns whether it is.
    pub(super) fn set_awaits_turn(&self, duplicate: bool) -> bool {
        let awaits = if duplicate { AHEAD_DUPLICATE } else { AHEAD_UNPROCESSED };
        let set = |progress| is_ahead(progress).then_some(awaits);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).is_ok()
    }

    pub(super) fn is_duplicate_ahead(&self) -> Option<bool> {
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

/// Resolves when the record's turn begins, or when its attempt is dropped. Not part of the public
/// contract.
#[doc(hidden)]
pub struct Turn(Watcher<Record>);

impl Turn {
    pub(super) fn new(record: Record) -> Self {
        Self(Watcher::new(record))
    }

    /// Checks whether the attempt was dropped before the record's turn.
    pub fn is_cancelled(&self) -> bool {
        self.0.get().is_interrupted()
    }
}

impl Future for Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_ready = |record: &Record| !record.is_ahead() || record.is_interrupted();
        self.get_mut().0.poll(cx, |record| is_ready(record).then_some(()))
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(self.0.get()).finish()
    }
}

/// Resolves when the layer waits for the record's turn. Not part of the public contract.
#[doc(hidden)]
pub struct AwaitsTurn(Watcher<Record>);

impl AwaitsTurn {
    pub(super) fn new(record: Record) -> Self {
        Self(Watcher::new(record))
    }
}

impl Future for AwaitsTurn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.poll(cx, |record| record.is_duplicate_ahead().map(drop))
    }
}

impl fmt::Debug for AwaitsTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AwaitsTurn").field(self.0.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use crate::Record;

    #[test]
    fn record_started_ahead_waits_for_its_turn() {
        let record = Record::builder("t", 0, 0).build();
        assert!(record.interrupt().turn(false).is_none());
        record.start(true);
        let turn = record.interrupt().turn(false).expect("the record is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.begin_turn();
        assert!(turn.is_woken());
        assert_ready!(turn.poll());
        assert!(record.interrupt().turn(false).is_none());
    }

    #[test]
    fn interrupt_ends_wait_for_turn() {
        let record = Record::builder("t", 0, 0).build();
        record.start(true);
        let turn = record.interrupt().turn(false).expect("the record is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.set_interrupted();
        assert!(turn.is_woken() && turn.is_cancelled());
        assert_ready!(turn.poll());
    }

    #[test]
    fn driver_sees_whether_a_record_that_awaits_its_turn_is_a_duplicate() {
        let record = Record::builder("t", 0, 0).build();
        record.start(true);
        let mut awaits = task::spawn(record.awaits_turn());
        assert_pending!(awaits.poll());
        for duplicate in [true, false] {
            let _turn = record.interrupt().turn(duplicate).expect("the record is ahead");
            assert!(record.is_ahead());
            assert_eq!(record.is_duplicate_ahead(), Some(duplicate));
        }
        assert!(awaits.is_woken());
        assert_ready!(awaits.poll());
        record.begin_turn();
        assert!(record.interrupt().turn(true).is_none());
        assert_eq!(record.is_duplicate_ahead(), None);
    }

    #[test]
    fn progress_is_what_was_set_last() {
        let record = Record::builder("t", 0, 0).build();
        let progress = || {
            (
                record.is_ahead(),
                record.is_processing(),
                record.is_recording(),
                record.is_duplicate(),
            )
        };
        assert_eq!(progress(), (false, false, false, false));
        record.start(true);
        assert_eq!(progress(), (true, false, false, false));
        record.begin_turn();
        assert_eq!(progress(), (false, false, false, false));
        record.set_processing();
        record.begin_turn(); // not ahead any more, so nothing changes
        assert_eq!(progress(), (false, true, false, false));
        record.interrupt().set_recording();
        assert_eq!(progress(), (false, false, true, false));
        record.interrupt().set_duplicate();
        assert_eq!(progress(), (false, false, false, true));
        record.start(false);
        assert_eq!(progress(), (false, false, false, false));
    }

    #[test]
    fn restart_clears_recording_and_interrupted() {
        let record = Record::builder("t", 0, 0).build();
        record.set_interrupted();
        record.interrupt().set_recording();
        assert!(record.is_recording() && record.interrupt().is_set());
        record.start(false);
        assert!(!record.is_recording() && !record.interrupt().is_set());
    }

    #[test]
    fn turn_is_cancelled_only_by_an_interrupt() {
        let record = Record::builder("t", 0, 0).build();
        record.start(true);
        let turn = record.interrupt().turn(false).expect("the record is ahead");
        record.begin_turn();
        assert!(!turn.is_cancelled());
        record.set_interrupted();
        assert!(turn.is_cancelled());
    }
}
