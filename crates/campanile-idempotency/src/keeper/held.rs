//! A lock that is held.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{Lock, LockControl, LostCause};
use tokio::sync::oneshot;

use super::request::{NotSettled, SettleResult, Settlement};
use super::shared::Handle;
use crate::error::IdempotencyError;
use crate::store::StoreError;

/// A lock that is held and renewed until this is settled or dropped.
///
/// It comes in the errors of a record that is given up, so that the dead letter can be published
/// under it: publish, wait for the broker's acknowledgement, then [`reject`](Self::reject).
///
/// # Cancellation
/// Dropped, the lock is let go and the attempt counts as failed; the entry never becomes FAILED by
/// that. Once `reject` or `release` was called, it takes place although its future is dropped.
#[derive(Debug)]
pub struct HeldLock {
    control: LockControl,
    slot: usize,
    keeper: Handle,
    /// What a drop means; `None` once it is settled.
    abandoned: Option<Settlement>,
}

impl HeldLock {
    pub(super) fn new(control: LockControl, slot: usize, keeper: Handle) -> Self {
        // Until the handler begins, it was not tried.
        let abandoned = Some(Settlement::Release { ran: false });
        Self { control, slot, keeper, abandoned }
    }

    /// Returns the lock: its token and attempt, and whether it still holds.
    pub fn lock(&self) -> &Lock {
        self.control.lock()
    }

    pub(crate) fn control(&self) -> &LockControl {
        &self.control
    }

    /// Makes the entry FAILED for good: after the dead letter was acknowledged, or by the explicit
    /// choice to give up without one. An empty reason keeps the handler's last error.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// [`IdempotencyError::LockLost`] if the entry belongs to another grant; then do not commit.
    /// [`IdempotencyError::Store`] if the entry cannot be read, or the keeper has stopped.
    pub fn reject(self, reason: impl Into<Box<str>>) -> Settling {
        self.settle(Settlement::Reject { reason: reason.into() })
    }

    /// Lets the lock go and hands the attempt back: that of a burial lock was none, that of a handler
    /// which has run is handed back at most 8 times for a key, so that poison comes to an end.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// As [`reject`](Self::reject)'s.
    pub fn release(self) -> Settling {
        let ran = matches!(self.abandoned, Some(Settlement::Fail { .. }));
        self.settle(Settlement::Release { ran })
    }

    /// Records the failed attempt and lets the lock go, as a drop does, but the key is not doomed: it
    /// may be tried again after its back-off, as long as there are attempts.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// As [`reject`](Self::reject)'s.
    pub fn fail(mut self) -> impl Future<Output = Result<(), IdempotencyError>> + Send + use<> {
        let settlement = match self.abandoned.take().expect("until it is settled or dropped") {
            Settlement::Fail { delay, error, .. } => Settlement::Fail { delay, last: false, error },
            other => other,
        };
        self.settle(settlement)
    }

    /// From now on a drop is a failed attempt, with the next after this delay.
    pub(crate) fn drop_fails(&mut self, delay: Duration, last: bool, error: Box<str>) {
        self.drop_means(Settlement::Fail { delay, last, error });
    }

    pub(crate) fn drop_means(&mut self, settlement: Settlement) {
        self.abandoned = Some(settlement);
    }

    pub(crate) fn settle(mut self, settlement: Settlement) -> Settling {
        self.abandoned = None;
        let (reply, settling) = oneshot::channel();
        self.send(settlement, Some(reply));
        Settling(settling)
    }

    fn send(&self, settlement: Settlement, reply: Option<oneshot::Sender<SettleResult>>) {
        // A clone of the lock that the handler has left somewhere must not pass for one any more.
        self.control.lose(LostCause::Ended);
        self.keeper.update(|state| state.settle(self.slot, settlement, reply));
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(settlement) = self.abandoned.take() {
            self.send(settlement, None);
        }
    }
}

/// Resolves when the store has answered. Made by [`HeldLock::reject`] and [`HeldLock::release`].
///
/// # Cancellation
/// It may be dropped at any time; the command was given already, and takes place all the same.
#[derive(Debug)]
#[must_use = "only its answer tells whether the entry is as it was asked to be"]
pub struct Settling(oneshot::Receiver<SettleResult>);

impl Future for Settling {
    type Output = Result<(), IdempotencyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(cx)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(NotSettled::Lost(lost))) => Err(IdempotencyError::LockLost(lost)),
            Ok(Err(NotSettled::Unreadable(error))) => Err(IdempotencyError::Store(error)),
            Err(_) => Err(IdempotencyError::Store(stopped())),
        })
    }
}

/// The error of a request to a keeper that has stopped.
pub(crate) fn stopped() -> StoreError {
    StoreError::unavailable("the lock keeper has stopped")
}
