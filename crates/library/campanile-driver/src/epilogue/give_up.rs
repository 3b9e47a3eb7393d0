//! Records that are given up: no attempt is left, or none can be made.

use campanile_core::LockHandle;
use campanile_idempotency::{HeldLock, IdempotencyError};

/// What happens to a record that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpAction {
    /// The consumer stops at the record.
    Stop,
    /// The record's partition stops at the record.
    StopPartition,
    /// The record is skipped.
    Skip,
    /// [`Epilogue::give_up`](super::Epilogue::give_up) takes it over.
    HandOver,
}

/// The lock that a given-up record comes with, if any.
#[derive(Debug)]
pub enum GiveUpLock {
    /// The record never had a lock.
    None,
    /// The lock of the record's last attempt, which failed.
    LastAttempt(HeldLock),
    /// A lock that was granted only to give the record up, without an attempt.
    Exhausted {
        /// The lock.
        lock: HeldLock,
        /// The number of such grants, without those that ended cleanly.
        give_ups: u32,
    },
}

impl GiveUpLock {
    /// Returns the handle of the lock, if the record has one.
    pub fn lock_handle(&self) -> Option<&LockHandle> {
        match self {
            Self::None => None,
            Self::LastAttempt(lock) | Self::Exhausted { lock, .. } => Some(lock.lock_handle()),
        }
    }

    /// Counts the give-ups that did not end cleanly: this one, and those that were interrupted.
    pub fn give_ups(&self) -> u32 {
        match self {
            Self::None | Self::LastAttempt(_) => 0,
            Self::Exhausted { give_ups, .. } => *give_ups,
        }
    }
}

/// Gives the record up for good. Its offset may be committed only after this returns `Ok`.
pub async fn give_up(giving_up: GiveUpLock, reason: String) -> Result<(), IdempotencyError> {
    match giving_up {
        GiveUpLock::None => Ok(()),
        GiveUpLock::LastAttempt(lock) => lock.give_up(reason).await,
        // An empty reason keeps the error of the last attempt.
        GiveUpLock::Exhausted { lock, .. } => lock.give_up("").await,
    }
}

/// Settles the lock without giving the record up, because the consumer or the partition stops at
/// this record.
pub async fn settle_for_stop(giving_up: GiveUpLock) -> Result<(), IdempotencyError> {
    match giving_up {
        GiveUpLock::None => Ok(()),
        // The attempt counts as failed. A fixed handler can use the attempts that are left.
        GiveUpLock::LastAttempt(lock) => lock.fail().await,
        GiveUpLock::Exhausted { lock, .. } => lock.release().await,
    }
}

/// Releases the lock as if the record had not been tried, because the consumer pauses at this
/// record. The failure is not the record's fault, and after the resume the record is to be tried
/// with the fix in place. If the attempt counted and none were left, the record would be given up
/// instead.
pub(crate) async fn release_for_pause(giving_up: GiveUpLock) -> Result<(), IdempotencyError> {
    match giving_up {
        GiveUpLock::None => Ok(()),
        GiveUpLock::LastAttempt(lock) | GiveUpLock::Exhausted { lock, .. } => lock.release().await,
    }
}
