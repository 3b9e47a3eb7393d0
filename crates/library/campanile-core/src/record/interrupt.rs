//! Signals between the driver, which drops a record's future, and the layer, which then releases the
//! record's lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::attempt::{DUPLICATE, RECORDING};
use super::{Record, Turn};
use crate::wakers::{Wakers, Watch, Watcher};

/// Shows the layer whether a record's future is dropped because of a revoke or a shutdown. The lock is
/// then released and the attempt is not counted.
///
/// The layer and the keeper hold a clone until the store has answered their last command for the record,
/// so that the driver can wait for the answer: see [`LockReleased`].
pub struct Interrupt(Record);

impl Interrupt {
    pub(super) fn new(record: Record) -> Self {
        record.0.attempt.interrupts.fetch_add(1, Ordering::Relaxed);
        Self(record)
    }

    /// Checks whether the driver is dropping the record's future.
    pub fn is_set(&self) -> bool {
        self.0.attempt().is_interrupted()
    }

    /// Returns the record.
    pub fn record(&self) -> &Record {
        &self.0
    }

    /// Creates a future of the record's turn, if the record was started ahead of it, and notifies the
    /// driver whether the record is a duplicate.
    pub fn turn(&self, duplicate: bool) -> Option<Turn> {
        if !self.0.0.attempt.progress.set_awaits_turn(duplicate) {
            return None;
        }
        self.0.0.attempt.wakers.wake_all();
        Some(Turn::new(self.0.clone()))
    }

    /// Notifies the driver that the handler has succeeded and that the outcome is being recorded.
    pub fn set_recording(&self) {
        self.0.0.attempt.progress.set(RECORDING);
    }

    /// Notifies the driver that the record is a duplicate.
    pub fn set_duplicate(&self) {
        self.0.0.attempt.progress.set(DUPLICATE);
    }
}

impl Watch for Record {
    fn wakers(&self) -> &Wakers {
        &self.0.attempt.wakers
    }
}

impl Clone for Interrupt {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if self.0.0.attempt.interrupts.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.attempt.wakers.wake_all();
        }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interrupt({})", self.is_set())
    }
}

/// Resolves when no [`Interrupt`] of the record is left. After the record's future was dropped, this is
/// when the store has answered the release of its lock.
pub struct LockReleased(Watcher<Record>);

impl LockReleased {
    pub(super) fn new(record: Record) -> Self {
        Self(Watcher::new(record))
    }
}

impl Future for LockReleased {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_settled = |record: &Record| record.0.attempt.interrupts.load(Ordering::Acquire) == 0;
        self.get_mut().0.poll(cx, |record| is_settled(record).then_some(()))
    }
}

impl fmt::Debug for LockReleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockReleased").field(self.0.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use crate::Record;

    #[test]
    fn let_go_resolves_when_last_interrupt_is_dropped() {
        let record = Record::builder("t", 0, 0).build();
        assert_ready!(task::spawn(record.attempt().lock_released()).poll());
        let one = record.attempt().interrupt();
        let other = one.clone();
        let mut lock_released = task::spawn(record.attempt().lock_released());
        assert_pending!(lock_released.poll());
        drop(one);
        assert!(!lock_released.is_woken());
        drop(other);
        assert!(lock_released.is_woken());
        assert_ready!(lock_released.poll());
    }
}
