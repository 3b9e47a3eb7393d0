//! Turns: when the handler of a record that was started ahead may run.
//!
//! While the store records the outcome of one record, the driver already starts the next record of the
//! same queue, and the layer acquires the next record's lock in the same round trip. Its handler waits
//! for the record's turn, which begins once the previous record is processed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Record;
use crate::wakers::Watcher;

/// Resolves when the record's turn begins, or when its attempt is dropped.
pub struct Turn(Watcher<Record>);

impl Turn {
    pub(super) fn new(record: Record) -> Self {
        Self(Watcher::new(record))
    }

    /// Checks whether the attempt was dropped before the record's turn.
    pub fn is_cancelled(&self) -> bool {
        self.0.get().attempt().is_interrupted()
    }
}

impl Future for Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_ready =
            |record: &Record| !record.attempt().is_ahead() || record.attempt().is_interrupted();
        self.get_mut().0.poll(cx, |record| is_ready(record).then_some(()))
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(self.0.get()).finish()
    }
}

/// Resolves when the layer waits for the record's turn.
pub struct AwaitsTurn(Watcher<Record>);

impl AwaitsTurn {
    pub(super) fn new(record: Record) -> Self {
        Self(Watcher::new(record))
    }
}

impl Future for AwaitsTurn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.poll(cx, |record| record.attempt().is_duplicate_ahead().map(drop))
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
        assert!(record.attempt().interrupt().turn(false).is_none());
        record.attempt().start(true);
        let turn = record.attempt().interrupt().turn(false).expect("the record is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.attempt().begin_turn();
        assert!(turn.is_woken());
        assert_ready!(turn.poll());
        assert!(record.attempt().interrupt().turn(false).is_none());
    }

    #[test]
    fn interrupt_ends_wait_for_turn() {
        let record = Record::builder("t", 0, 0).build();
        record.attempt().start(true);
        let turn = record.attempt().interrupt().turn(false).expect("the record is ahead");
        let mut turn = task::spawn(turn);
        assert_pending!(turn.poll());
        record.attempt().set_interrupted();
        assert!(turn.is_woken() && turn.is_cancelled());
        assert_ready!(turn.poll());
    }

    #[test]
    fn driver_sees_whether_a_record_that_awaits_its_turn_is_a_duplicate() {
        let record = Record::builder("t", 0, 0).build();
        record.attempt().start(true);
        let mut awaits = task::spawn(record.attempt().awaits_turn());
        assert_pending!(awaits.poll());
        for duplicate in [true, false] {
            let _turn = record.attempt().interrupt().turn(duplicate).expect("the record is ahead");
            assert!(record.attempt().is_ahead());
            assert_eq!(record.attempt().is_duplicate_ahead(), Some(duplicate));
        }
        assert!(awaits.is_woken());
        assert_ready!(awaits.poll());
        record.attempt().begin_turn();
        assert!(record.attempt().interrupt().turn(true).is_none());
        assert_eq!(record.attempt().is_duplicate_ahead(), None);
    }

    #[test]
    fn progress_is_what_was_set_last() {
        let record = Record::builder("t", 0, 0).build();
        let progress = || {
            (
                record.attempt().is_ahead(),
                record.attempt().is_processing(),
                record.attempt().is_recording(),
                record.attempt().is_duplicate(),
            )
        };
        assert_eq!(progress(), (false, false, false, false));
        record.attempt().start(true);
        assert_eq!(progress(), (true, false, false, false));
        record.attempt().begin_turn();
        assert_eq!(progress(), (false, false, false, false));
        record.attempt().set_processing();
        record.attempt().begin_turn(); // not ahead any more, so nothing changes
        assert_eq!(progress(), (false, true, false, false));
        record.attempt().interrupt().set_recording();
        assert_eq!(progress(), (false, false, true, false));
        record.attempt().interrupt().set_duplicate();
        assert_eq!(progress(), (false, false, false, true));
        record.attempt().start(false);
        assert_eq!(progress(), (false, false, false, false));
    }

    #[test]
    fn restart_clears_recording_and_interrupted() {
        let record = Record::builder("t", 0, 0).build();
        record.attempt().set_interrupted();
        record.attempt().interrupt().set_recording();
        assert!(record.attempt().is_recording() && record.attempt().interrupt().is_set());
        record.attempt().start(false);
        assert!(!record.attempt().is_recording() && !record.attempt().interrupt().is_set());
    }

    #[test]
    fn turn_is_cancelled_only_by_an_interrupt() {
        let record = Record::builder("t", 0, 0).build();
        record.attempt().start(true);
        let turn = record.attempt().interrupt().turn(false).expect("the record is ahead");
        record.attempt().begin_turn();
        assert!(!turn.is_cancelled());
        record.attempt().set_interrupted();
        assert!(turn.is_cancelled());
    }
}
