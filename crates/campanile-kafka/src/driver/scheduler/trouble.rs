//! Why a record is not finished by its first attempt.

use std::error::Error;

use campanile_idempotency::IdempotencyError;

/// What a record's attempts have met.
#[derive(Debug)]
pub(super) struct Trouble {
    /// How many times.
    pub(super) times: u32,
    /// The text of the last error.
    pub(super) error: String,
    /// What the next attempt waits for.
    pub(super) waits_for: &'static str,
}

/// Returns what a record waits for whose attempt has ended in this error.
pub(super) fn waits_for(error: &(dyn Error + 'static)) -> &'static str {
    match IdempotencyError::find(error) {
        Some(IdempotencyError::Locked { .. }) => "the lock of its key, which somebody else holds",
        Some(IdempotencyError::LockLost(_)) => "its next attempt, since its lock was lost",
        _ => BACKOFF,
    }
}

pub(super) const BACKOFF: &str = "the end of its back-off";
pub(super) const STORE: &str = "the store, which does not answer";
pub(super) const LETTER: &str = "its dead letter, which is not published";
