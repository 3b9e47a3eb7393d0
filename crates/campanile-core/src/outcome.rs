//! What the idempotency layer answers.

use std::time::SystemTime;

/// What became of a request under its idempotency lock. Each variant is a success: the offset can
/// be committed.
///
/// A duplicate is a response and not an error; otherwise retries, traces and metrics around the
/// layer would take it for a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The inner service ran, and its success is recorded.
    Processed(T),
    /// The key is COMPLETED; the inner service did not run.
    Duplicate(Duplicate<T>),
    /// The key is FAILED for good; the inner service did not run.
    Parked(Parked),
    /// The inner service ran without a lock, because a policy let it.
    Unguarded(T, Unguarded),
}

impl<T> Outcome<T> {
    /// The inner service's answer: of this run or, replayed, of the first.
    pub fn into_reply(self) -> Option<T> {
        match self {
            Self::Processed(reply) | Self::Unguarded(reply, _) => Some(reply),
            Self::Duplicate(duplicate) => duplicate.reply,
            Self::Parked(_) => None,
        }
    }

    /// Whether the key was COMPLETED before.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// What an entry tells about the first run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Duplicate<T> {
    /// What it answered, if that was kept.
    pub reply: Option<T>,
    /// How many attempts it took.
    pub attempts: u32,
    /// When it was completed, by the store's clock.
    pub completed_at: SystemTime,
}

impl<T> Duplicate<T> {
    /// For the layer, and for tests of those who look at outcomes.
    pub fn new(reply: Option<T>, attempts: u32, completed_at: SystemTime) -> Self {
        Self { reply, attempts, completed_at }
    }
}

/// What an entry tells about a key that is FAILED.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// How many attempts there were.
    pub attempts: u32,
    /// Why it was given up, or the last error.
    pub error: Option<Box<str>>,
}

impl Parked {
    /// For the layer, and for tests of those who look at outcomes.
    pub fn new(attempts: u32, error: Option<Box<str>>) -> Self {
        Self { attempts, error }
    }
}

/// Why there was no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unguarded {
    /// The request has no key, and the policy for that is to pass it through.
    MissingKey,
    /// The store was unavailable, and the user's predicate let it through.
    StoreDown,
}
