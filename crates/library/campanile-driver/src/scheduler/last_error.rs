//! Why a record was not finished by its first attempt.

use std::error::Error;

use campanile_idempotency::IdempotencyError;

/// The errors of a record's attempts.
#[derive(Debug)]
pub(crate) struct LastError {
    /// The number of attempts that ended in an error.
    pub(crate) failures: u32,
    /// The text of the last error.
    pub(crate) error: String,
    /// What the next attempt waits for.
    pub(crate) waits_for: &'static str,
}

/// Says what a record waits for after an attempt that ended in this error.
pub(super) fn waits_for(error: &(dyn Error + 'static)) -> &'static str {
    match IdempotencyError::find(error) {
        Some(IdempotencyError::Locked { .. }) => "the lock of its key, held by another owner",
        Some(IdempotencyError::LockLost(_)) => "its next attempt, after its lock was lost",
        _ => WAITS_FOR_BACKOFF,
    }
}

pub(crate) const WAITS_FOR_BACKOFF: &str = "the end of its backoff";
pub(crate) const WAITS_FOR_DEPENDENCY: &str = "what its handler depends on, which is unavailable";
pub(crate) const WAITS_FOR_STORE: &str = "the store, which is unavailable";
