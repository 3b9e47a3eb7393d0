//! Work that must wait until the keeper's state is unlocked.

use std::sync::Arc;

use campanile_core::{Interrupt, LockControl, LostCause};
use futures_util::future::AbortHandle;
use tokio::sync::oneshot;

use super::held::HeldLock;
use super::lock_events::LockEvents;
use super::request::{AcquireRequest, Acquisition, LockKey, SettleResult, Settlement};
use super::results::ResultRef;
use super::shared::{KeeperHandle, KeeperShared};
use super::slot::Slot;
use super::steps::{PendingSteps, StepResult};
use crate::store::StoreError;

/// Sends, wakes and drops run code of the caller (a waker, a `Drop`) or of the application (a log
/// subscriber), which may call the keeper again. They therefore run after its mutex is released.
#[derive(Debug)]
pub(super) enum Deferred {
    SendAcquisition(oneshot::Sender<Acquisition>, Acquisition),
    /// An answer that contains the lock of this slot.
    SendGrant {
        reply: oneshot::Sender<Acquisition>,
        control: LockControl,
        slot: usize,
        giving_up: Option<GiveUp>,
    },
    SendSettleResult(oneshot::Sender<SettleResult>, SettleResult),
    /// Marks the lock as lost, unless it already is.
    LoseLock(LockControl, LostCause, Box<LockEvents>),
    /// The slot is free. Dropping it notifies the requests that wait for its key, and the driver.
    DropSlot(Box<Slot>),
    /// A request that gets no answer.
    DropAcquire(AcquireRequest),
    /// The rest of a request that was answered.
    DropRequest(LockKey, Option<Interrupt>),
    DropResult(ResultRef),
    /// The keeper has stopped.
    DropSettlement(Settlement, Option<oneshot::Sender<SettleResult>>),
    LogRenewalFailure(StoreError),
    LogCompletionRefused(Box<LockEvents>),
    LogCompletionPending(Box<LockEvents>, Option<StoreError>),
    LogCompletionFailed(Box<LockEvents>, StoreError),
    SendStepResult(oneshot::Sender<StepResult>, StepResult),
    /// Steps that are not recorded, because the attempt has ended.
    DropSteps(PendingSteps),
    /// A call that took too long.
    Abort(AbortHandle),
    NotifyShutdown(oneshot::Sender<()>),
}

/// The details of a give-up lock, under which the handler does not run.
#[derive(Debug)]
pub(super) struct GiveUp {
    pub(super) attempts: u32,
    pub(super) give_ups: u32,
    pub(super) last_error: Option<Box<str>>,
}

impl Deferred {
    pub(super) fn run(self, shared: &Arc<KeeperShared>) {
        // If the receiver was dropped, the value is dropped here, which releases a lock.
        match self {
            Self::SendAcquisition(reply, answer) => drop(reply.send(answer)),
            Self::SendGrant { reply, control, slot, giving_up } => {
                let lock = HeldLock::new(control, slot, KeeperHandle::new(shared.clone()));
                drop(reply.send(match giving_up {
                    None => Acquisition::Held(lock),
                    Some(GiveUp { attempts, give_ups, last_error }) => {
                        Acquisition::Exhausted { lock, attempts, give_ups, last_error }
                    }
                }));
            }
            Self::SendSettleResult(reply, result) => drop(reply.send(result)),
            Self::LoseLock(control, cause, events) => {
                // If the attempt has ended, the lock is about to be settled.
                if control.cause() != Some(LostCause::Ended) {
                    events.log_lost(cause, control.is_effect_possible());
                }
                control.lose(cause);
            }
            Self::LogCompletionRefused(events) => events.log_completion_refused(),
            Self::LogCompletionPending(events, error) => {
                events.log_completion_pending(error.as_ref());
            }
            Self::LogCompletionFailed(events, error) => events.log_completion_failed(&error),
            Self::DropSlot(slot) => drop(slot),
            Self::DropAcquire(acquire) => drop(acquire),
            Self::DropRequest(key, interrupt) => drop((key, interrupt)),
            Self::DropResult(result) => drop(result),
            Self::DropSettlement(settlement, reply) => drop((settlement, reply)),
            Self::LogRenewalFailure(error) => {
                tracing::debug!(%error, "failed to renew lock; retrying")
            }
            Self::SendStepResult(reply, result) => drop(reply.send(result)),
            Self::DropSteps(steps) => drop(steps),
            Self::Abort(call) => call.abort(),
            Self::NotifyShutdown(done) => drop(done.send(())),
        }
    }
}
