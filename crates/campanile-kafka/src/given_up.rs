//! Records that are given up: no attempt is left, or none can be made.

use std::sync::Arc;

use campanile_core::Lock;
use campanile_idempotency::{HeldLock, IdempotencyError};

use crate::dead_letter::{DeadLetter, DeadLetters};

/// What happens to a record that is given up: its attempts are used up, its error is permanent, or
/// it cannot be tried at all (it does not decode, it has no valid key, or its key was used for
/// another payload).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum GivenUp {
    /// Serving ends with [`ConsumerError::Stopped`](crate::ConsumerError::Stopped), and the
    /// record's offset is not committed. The default, because any other policy loses the record
    /// unless the user has decided where it goes.
    #[default]
    Stop,
    /// The record is skipped: its key's entry becomes FAILED, with the error as its reason, then
    /// the offset is committed. Without a lock (the record was never tried), only the offset is
    /// committed. An event at level WARN names each skipped record.
    ///
    /// **Nothing limits this policy.** There is no [`FloodGuard`](crate::FloodGuard) for it: if a
    /// broken handler was deployed, or a dependency refuses everything, the whole topic is skipped.
    /// Where that would do harm, use a [`DeadLetter`] topic.
    Skip,
    /// The record is published to a dead-letter topic. When the brokers have acknowledged it, its
    /// key's entry becomes FAILED, and then the offset is committed.
    DeadLetter(DeadLetter),
}

impl From<DeadLetter> for GivenUp {
    fn from(policy: DeadLetter) -> Self {
        Self::DeadLetter(policy)
    }
}

/// The policy as the scheduler applies it.
#[derive(Clone)]
pub(crate) enum GivenUpAction {
    Stop,
    Skip,
    DeadLetter(Arc<DeadLetters>),
}

/// The lock that a given-up record comes with, if any.
pub(crate) enum BurialLock {
    /// The record never had a lock.
    None,
    /// The lock of the record's last attempt, which failed.
    LastAttempt(HeldLock),
    /// A lock that was granted only to bury the record, without an attempt. `burials` is the number
    /// of such grants, without those that ended cleanly.
    Exhausted { lock: HeldLock, burials: u32 },
}

impl BurialLock {
    pub(crate) fn lock(&self) -> Option<&Lock> {
        match self {
            Self::None => None,
            Self::LastAttempt(lock) | Self::Exhausted { lock, .. } => Some(lock.lock()),
        }
    }

    /// Returns the number of burials that did not end cleanly: this one, and those that were
    /// interrupted.
    pub(crate) fn burials(&self) -> u32 {
        match self {
            Self::None | Self::LastAttempt(_) => 0,
            Self::Exhausted { burials, .. } => *burials,
        }
    }
}

/// Gives the record up for good. Its offset may be committed only after this returns `Ok`.
pub(crate) async fn reject(burial: BurialLock, reason: String) -> Result<(), IdempotencyError> {
    match burial {
        BurialLock::None => Ok(()),
        BurialLock::LastAttempt(lock) => lock.reject(reason).await,
        // An empty reason keeps the error of the last attempt.
        BurialLock::Exhausted { lock, .. } => lock.reject("").await,
    }
}

/// Settles the lock without giving the record up, because the consumer stops at this record.
pub(crate) async fn settle_for_stop(burial: BurialLock) -> Result<(), IdempotencyError> {
    match burial {
        BurialLock::None => Ok(()),
        // The attempt counts as failed. A fixed handler can use the attempts that are left.
        BurialLock::LastAttempt(lock) => lock.fail().await,
        BurialLock::Exhausted { lock, .. } => lock.release().await,
    }
}

/// Releases the lock as if the record had not been tried, because the consumer pauses at this
/// record. The failure is not the record's fault, and after the resume the record is to be tried
/// with the fix in place. If the attempt counted and none were left, the record would be buried
/// instead.
pub(crate) async fn release_for_pause(burial: BurialLock) -> Result<(), IdempotencyError> {
    match burial {
        BurialLock::None => Ok(()),
        BurialLock::LastAttempt(lock) | BurialLock::Exhausted { lock, .. } => lock.release().await,
    }
}
