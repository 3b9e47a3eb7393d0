//! Work that must wait until the keeper's state is unlocked.

use std::sync::Arc;

use campanile_core::{Interrupt, LockControl, LostCause, StoreKey};
use futures_util::future::AbortHandle;
use tokio::sync::oneshot;

use super::ends::Found;
use super::held::HeldLock;
use super::request::{Acquire, Acquisition, SettleResult, Settlement};
use super::shared::{Handle, Shared};
use super::slot::Slot;
use crate::store::StoreError;

/// Sends, wakes and drops run code of the caller (a waker, a `Drop`) or of the application (a log
/// subscriber), which may call the keeper again. They therefore run after its mutex is released.
#[derive(Debug)]
pub(super) enum Deferred {
    Answer(oneshot::Sender<Acquisition>, Acquisition),
    /// An answer that contains the lock of this slot.
    Grant {
        reply: oneshot::Sender<Acquisition>,
        control: LockControl,
        slot: usize,
        burial: Option<Burial>,
    },
    Settled(oneshot::Sender<SettleResult>, SettleResult),
    /// Marks the lock as lost, unless it already is.
    Lose(LockControl, LostCause),
    /// The slot is free. Dropping it notifies the requests that wait for its key, and the driver.
    Ended(Box<Slot>),
    /// A request that gets no answer.
    Abandoned(Acquire),
    /// The rest of a request that was answered.
    Request(StoreKey, Option<Interrupt>),
    End(Found),
    /// The keeper has stopped.
    Unsettled(Settlement, Option<oneshot::Sender<SettleResult>>),
    RenewalFailed(StoreError),
    /// A call that took too long.
    Abort(AbortHandle),
    ShutDown(oneshot::Sender<()>),
}

/// The details of a burial lock, under which the handler does not run.
#[derive(Debug)]
pub(super) struct Burial {
    pub(super) attempts: u32,
    pub(super) burials: u32,
    pub(super) last_error: Option<Box<str>>,
}

impl Deferred {
    pub(super) fn run(self, shared: &Arc<Shared>) {
        // If the receiver was dropped, the value is dropped here, which releases a lock.
        match self {
            Self::Answer(reply, answer) => drop(reply.send(answer)),
            Self::Grant { reply, control, slot, burial } => {
                let lock = HeldLock::new(control, slot, Handle::new(shared.clone()));
                drop(reply.send(match burial {
                    None => Acquisition::Held(lock),
                    Some(Burial { attempts, burials, last_error }) => {
                        Acquisition::Exhausted { lock, attempts, burials, last_error }
                    }
                }));
            }
            Self::Settled(reply, result) => drop(reply.send(result)),
            Self::Lose(control, cause) => {
                // If the attempt has ended, the lock is about to be settled.
                if control.cause() != Some(LostCause::Ended) {
                    let token = control.lock().token().get();
                    tracing::warn!(token, ?cause, "lock lost");
                }
                control.lose(cause);
            }
            Self::Ended(slot) => drop(slot),
            Self::Abandoned(acquire) => drop(acquire),
            Self::Request(key, interrupt) => drop((key, interrupt)),
            Self::End(end) => drop(end),
            Self::Unsettled(settlement, reply) => drop((settlement, reply)),
            Self::RenewalFailed(error) => tracing::debug!(%error, "failed to renew lock; retrying"),
            Self::Abort(call) => call.abort(),
            Self::ShutDown(done) => drop(done.send(())),
        }
    }
}
