//! What is asked of the keeper, and what it answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{Completion, Fingerprint, Interrupt, LockLost, Owner, Retention, StoreKey};
use tokio::sync::oneshot;

use super::{HeldLock, Settled};
use crate::store::StoreError;

/// The numbers of a layer, as the keeper needs them.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) max_attempts: u16,
    pub(crate) max_hold: Duration,
    pub(crate) retention: Retention,
}

/// A request for a lock.
#[derive(Debug)]
pub(super) struct Acquire {
    pub(super) key: StoreKey,
    /// Drawn for this acquisition alone; a repeated command carries it again.
    pub(super) owner: Owner,
    pub(super) terms: Arc<Terms>,
    pub(super) fingerprint: Option<Fingerprint>,
    /// Kept until nothing is left to send to the store for the request.
    pub(super) interrupt: Option<Interrupt>,
    pub(super) reply: oneshot::Sender<Acquisition>,
}

/// The outcome of an acquire.
#[derive(Debug)]
pub(crate) enum Acquisition {
    Held(HeldLock),
    Exhausted { lock: HeldLock, attempts: u32, burials: u32, last_error: Option<Box<str>> },
    Duplicate { reply: Option<Bytes>, attempts: u32, completed_at: SystemTime },
    Parked { attempts: u32, reason: Option<Box<str>> },
    Locked { retry_after: Duration, settled: Option<Settled> },
    BackingOff { retry_after: Duration, attempts: u32 },
    Mismatch,
    Unavailable(StoreError),
    ShuttingDown,
}

/// How a grant ends.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    Complete {
        reply: Option<Bytes>,
    },
    Fail {
        delay: Duration,
        last: bool,
        error: Box<str>,
    },
    Release {
        ran: bool,
    },
    Reject {
        reason: Box<str>,
    },
    /// Nothing is sent: it was completed already, together with the handler's effect.
    Completed(Completion),
    /// Nothing is sent: the lock expires by itself, or is lost already.
    Expire,
}

/// Whether the grant ended as it was asked to.
pub(crate) type SettleResult = Result<(), NotSettled>;

/// Why a grant did not end as it was asked to.
#[derive(Debug)]
pub(crate) enum NotSettled {
    /// The entry belongs to another grant, or this one had ended otherwise.
    Lost(LockLost),
    /// The entry cannot be read, so nothing can be written either.
    Unreadable(StoreError),
}
