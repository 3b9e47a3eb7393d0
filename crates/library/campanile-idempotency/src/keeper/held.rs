//! Held locks and their settlement.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{LockControl, LockHandle, LostCause};
use tokio::sync::oneshot;

use super::request::{SettleError, SettleResult, Settlement};
use super::shared::KeeperHandle;
use crate::error::IdempotencyError;
use crate::store::StoreError;

/// A lock that is held and renewed until it is settled or this guard is dropped.
///
/// The error for a record that is given up contains this guard, so that the dead letter can be
/// published under the lock: publish it, wait for the broker's acknowledgement, then call
/// [`give_up`](Self::give_up).
///
/// # Cancellation
/// Dropping the guard releases the lock and counts the attempt as failed; it never moves the entry
/// to FAILED. A call to `give_up` or `release` takes effect even if its future is dropped.
#[derive(Debug)]
#[must_use = "dropping the lock settles it; give it up, release it or fail it"]
pub struct HeldLock {
    control: LockControl,
    slot: usize,
    keeper: KeeperHandle,
    /// The settlement on drop; `None` once the lock is settled.
    on_drop: Option<Settlement>,
}

impl HeldLock {
    pub(super) fn new(control: LockControl, slot: usize, keeper: KeeperHandle) -> Self {
        // Until the handler starts, the attempt does not count.
        let on_drop = Some(Settlement::Release { ran: false });
        Self { control, slot, keeper, on_drop }
    }

    /// Returns the lock, with its token, its attempt, and whether it is still held.
    pub fn lock_handle(&self) -> &LockHandle {
        self.control.lock_handle()
    }

    pub(crate) fn control(&self) -> &LockControl {
        &self.control
    }

    /// Moves the entry to FAILED, after the dead letter was acknowledged, or after an explicit
    /// decision to give the record up without one. An empty reason keeps the handler's last error.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// [`IdempotencyError::LockLost`] if the entry belongs to another grant; do not commit in that
    /// case. [`IdempotencyError::Store`] if the entry cannot be read, or if the keeper has stopped.
    pub fn give_up(self, reason: impl Into<Box<str>>) -> Settling {
        let mut reason = reason.into();
        // The entry has the error of an earlier attempt.
        if reason.is_empty()
            && let Some(Settlement::Fail { error, .. }) = &self.on_drop
        {
            reason.clone_from(error);
        }
        self.settle(Settlement::GiveUp { reason })
    }

    /// Releases the lock without counting the attempt. A give-up lock has counted no attempt. If the
    /// handler has run, this works at most 8 times per key; after that the attempt counts, so that
    /// a poison record runs out of attempts.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// As for [`give_up`](Self::give_up).
    pub fn release(self) -> Settling {
        let ran = matches!(self.on_drop, Some(Settlement::Fail { .. }));
        self.settle(Settlement::Release { ran })
    }

    /// Records the failed attempt and releases the lock, as a drop does, but does not doom the key:
    /// it is retried after its backoff while attempts are left.
    ///
    /// Repeats the command until the store answers.
    ///
    /// # Errors
    /// As for [`give_up`](Self::give_up).
    pub fn fail(mut self) -> impl Future<Output = Result<(), IdempotencyError>> + Send + use<> {
        let settlement = match self.on_drop.take().expect("present until settled or dropped") {
            Settlement::Fail { delay, error, .. } => Settlement::Fail { delay, last: false, error },
            other => other,
        };
        self.settle(settlement)
    }

    /// Makes `max_hold` begin now, because the record has waited for its turn until now.
    pub(crate) fn restart_hold(&self) {
        self.keeper.update(|state| state.restart_hold(self.slot));
    }

    /// Makes a later drop record a failed attempt, with this delay before the next one.
    pub(crate) fn set_drop_failure(&mut self, delay: Duration, last: bool, error: Box<str>) {
        self.set_drop_settlement(Settlement::Fail { delay, last, error });
    }

    pub(crate) fn set_drop_settlement(&mut self, settlement: Settlement) {
        self.on_drop = Some(settlement);
    }

    pub(crate) fn settle(mut self, settlement: Settlement) -> Settling {
        self.on_drop = None;
        let (reply, settling) = oneshot::channel();
        self.send(settlement, Some(reply));
        Settling(settling)
    }

    fn send(&self, settlement: Settlement, reply: Option<oneshot::Sender<SettleResult>>) {
        // Any clone of the lock that the handler has leaked must report it as lost.
        self.control.lose(LostCause::Ended);
        self.keeper.update(|state| state.settle(self.slot, settlement, reply));
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(settlement) = self.on_drop.take() {
            self.send(settlement, None);
        }
    }
}

/// Resolves when the store has answered. Returned by [`HeldLock::give_up`] and
/// [`HeldLock::release`].
///
/// # Cancellation
/// It can be dropped at any time; the command has already been issued and takes effect anyway.
#[derive(Debug)]
#[must_use = "only the result shows whether the entry was changed as requested"]
pub struct Settling(oneshot::Receiver<SettleResult>);

impl Future for Settling {
    type Output = Result<(), IdempotencyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(cx)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(SettleError::Lost(lost))) => Err(IdempotencyError::LockLost(lost)),
            Ok(Err(SettleError::Store(error))) => Err(IdempotencyError::Store(error)),
            Err(_) => Err(IdempotencyError::Store(stopped_error())),
        })
    }
}

pub(crate) fn stopped_error() -> StoreError {
    StoreError::unavailable("the lock keeper has stopped")
}
