//! Records that are given up: no attempt is left, or none can be made.

use std::sync::Arc;

use campanile_core::Lock;
use campanile_idempotency::{HeldLock, IdempotencyError};

use crate::dead_letter::{DeadLetter, DeadLetters};

/// What happens to a record that is given up: its attempts are used up or its error is permanent, or
/// it cannot be tried at all (it does not decode, it has no valid key, its key was used for another
/// payload).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum GivenUp {
    /// Serving ends with [`ConsumerError::Stopped`](crate::ConsumerError::Stopped), and the record's
    /// offset is not committed. The default, because anything else loses the record unless somebody
    /// has decided where it goes.
    #[default]
    Stop,
    /// The record is skipped: its key's entry becomes FAILED, with the error as its reason, then the
    /// offset is committed. Without a lock (it was never tried) the offset alone. An event at level
    /// WARN names each.
    ///
    /// **Nothing ends it.** There is no [`FloodGuard`](crate::FloodGuard) for it: a handler that was
    /// deployed broken, or a dependency that refuses everything, skips the whole topic. Where that
    /// would hurt, use a [`DeadLetter`] topic.
    Skip,
    /// The record is published to a topic for dead letters; when the brokers have acknowledged that,
    /// its key's entry becomes FAILED, and then the offset is committed.
    DeadLetter(DeadLetter),
}

impl From<DeadLetter> for GivenUp {
    fn from(policy: DeadLetter) -> Self {
        Self::DeadLetter(policy)
    }
}

/// What the policy comes to while serving.
#[derive(Clone)]
pub(crate) enum Fate {
    Stop,
    Skip,
    DeadLetter(Arc<DeadLetters>),
}

/// The lock that a given-up record may come with.
pub(crate) enum Burial {
    /// It never had one.
    None,
    /// That of its last attempt, which failed.
    LastAttempt(HeldLock),
    /// One that was granted to bury it, no attempt was made. How many of these there were, without
    /// those that were let go in order.
    Exhausted { lock: HeldLock, burials: u32 },
}

impl Burial {
    pub(crate) fn lock(&self) -> Option<&Lock> {
        match self {
            Self::None => None,
            Self::LastAttempt(lock) | Self::Exhausted { lock, .. } => Some(lock.lock()),
        }
    }

    /// How many burials were begun and not let go in order: this one, and those that were interrupted.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::None | Self::LastAttempt(_) => 0,
            Self::Exhausted { burials, .. } => *burials,
        }
    }
}

/// Gives the record up for good. Only after this is `Ok` may its offset be committed.
pub(crate) async fn skip(burial: Burial, reason: String) -> Result<(), IdempotencyError> {
    match burial {
        Burial::None => Ok(()),
        Burial::LastAttempt(lock) => lock.reject(reason).await,
        // The last attempt's error stays: an empty reason keeps it.
        Burial::Exhausted { lock, .. } => lock.reject("").await,
    }
}

/// Leaves everything as it is, because the consumer stops here.
pub(crate) async fn leave(burial: Burial) -> Result<(), IdempotencyError> {
    match burial {
        Burial::None => Ok(()),
        // It counts as the failed attempt that it was; a mended handler may try what is left.
        Burial::LastAttempt(lock) => lock.fail().await,
        Burial::Exhausted { lock, .. } => lock.release().await,
    }
}

/// Lets it go as if it had not been tried, because the consumer pauses here: what fails is not the
/// record's fault, and who resumes wants it tried by what was mended. An attempt of which nothing is
/// left would have it buried instead.
pub(crate) async fn hold(burial: Burial) -> Result<(), IdempotencyError> {
    match burial {
        Burial::None => Ok(()),
        Burial::LastAttempt(lock) | Burial::Exhausted { lock, .. } => lock.release().await,
    }
}
