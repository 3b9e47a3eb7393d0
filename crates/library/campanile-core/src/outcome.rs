//! The responses of the idempotency layer.

use std::time::SystemTime;

use crate::Details;

/// The outcome of a request under its idempotency lock. With every variant, the record's offset can
/// be committed.
///
/// A duplicate is a response and not an error; otherwise retries, traces and metrics around the
/// layer would treat it as a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The inner service ran, and its success is recorded.
    Processed(T),
    /// The key is COMPLETED; the inner service did not run.
    Duplicate(Duplicate<T>),
    /// The key is FAILED; the inner service did not run, or its error gave up the key.
    GivenUp(GivenUp),
    /// The inner service ran without a lock, because a policy allowed it.
    WithoutLock(T, WithoutLock),
}

impl<T> Outcome<T> {
    /// Takes the reply of the inner service: of this run, or the stored reply of the first run.
    pub fn into_reply(self) -> Option<T> {
        match self {
            Self::Processed(reply) | Self::WithoutLock(reply, _) => Some(reply),
            Self::Duplicate(duplicate) => duplicate.reply,
            Self::GivenUp(_) => None,
        }
    }

    /// Checks whether the key was already COMPLETED.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// What the entry records about the first run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Duplicate<T> {
    /// The reply of the first run, if it was kept.
    pub reply: Option<T>,
    /// The number of attempts until the key was completed.
    pub attempts: u32,
    /// When the key was completed, by the store's clock.
    pub completed_at: SystemTime,
    /// Which process ran it, for which record and in which trace, if the layer keeps this.
    pub details: Option<Details>,
}

impl<T> Duplicate<T> {
    /// Creates a `Duplicate` without details. For the layer, and for tests of code that inspects outcomes.
    pub fn new(reply: Option<T>, attempts: u32, completed_at: SystemTime) -> Self {
        Self { reply, attempts, completed_at, details: None }
    }
}

/// What the entry records about a FAILED key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenUp {
    /// The number of attempts.
    pub attempts: u32,
    /// The reason for giving up, or the last error.
    pub error: Option<Box<str>>,
}

impl GivenUp {
    /// Creates a `GivenUp`. For the layer, and for tests of code that inspects outcomes.
    pub fn new(attempts: u32, error: Option<Box<str>>) -> Self {
        Self { attempts, error }
    }
}

/// The reason why a request was processed without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutLock {
    /// The request has no key, and the policy passes such requests through.
    MissingKey,
    /// The store was unavailable, and the user's predicate let the request through.
    StoreUnavailable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_that_of_the_run_or_the_stored_one() {
        let completed_at = SystemTime::UNIX_EPOCH;
        let duplicate = |reply| Outcome::Duplicate(Duplicate::new(reply, 2, completed_at));
        for (outcome, reply, is_duplicate) in [
            (Outcome::Processed(1), Some(1), false),
            (Outcome::WithoutLock(2, WithoutLock::MissingKey), Some(2), false),
            (duplicate(Some(3)), Some(3), true),
            (duplicate(None), None, true),
            (Outcome::GivenUp(GivenUp::new(4, None)), None, false),
        ] {
            assert_eq!(outcome.is_duplicate(), is_duplicate, "{outcome:?}");
            assert_eq!(outcome.into_reply(), reply);
        }
    }
}
