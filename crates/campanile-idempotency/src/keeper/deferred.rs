//! Work that has to wait until the keeper's state is unlocked.

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

/// Sends, wakes and drops are code of the caller's (a waker, a `Drop`) or of the program's (a log
/// subscriber), which may call the keeper again. So they run after its mutex was released.
#[derive(Debug)]
pub(super) enum Deferred {
    Answer(oneshot::Sender<Acquisition>, Acquisition),
    /// An answer that carries the lock of this slot.
    Grant {
        reply: oneshot::Sender<Acquisition>,
        control: LockControl,
        slot: usize,
        burial: Option<Burial>,
    },
    Settled(oneshot::Sender<SettleResult>, SettleResult),
    /// The lock is lost, unless it was before.
    Lose(LockControl, LostCause),
    /// The slot is free: those who wait for its key and its record are notified by the drop.
    Ended(Box<Slot>),
    /// A request that is not answered.
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

/// A grant on which the handler does not run.
#[derive(Debug)]
pub(super) struct Burial {
    pub(super) attempts: u32,
    pub(super) burials: u32,
    pub(super) last_error: Option<Box<str>>,
}

impl Deferred {
    pub(super) fn run(self, shared: &Arc<Shared>) {
        // A receiver may have been dropped. Then the value is dropped here, which hands a lock back.
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
                // One that has ended is about to be settled.
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
            Self::RenewalFailed(error) => tracing::debug!(%error, "renewal failed"),
            Self::Abort(call) => call.abort(),
            Self::ShutDown(done) => drop(done.send(())),
        }
    }
}
