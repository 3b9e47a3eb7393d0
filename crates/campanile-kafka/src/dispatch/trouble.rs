//! Why a record is not finished by its first attempt.

use std::error::Error;

use campanile_idempotency::IdempotencyError;

/// What a record has met, for those who ask why it takes so long.
#[derive(Debug)]
pub(super) struct Trouble {
    /// How often.
    pub(super) times: u32,
    /// The last one's text.
    pub(super) error: String,
    /// What its next attempt waits for.
    pub(super) waits_for: &'static str,
}

/// What a record waits for whose attempt ended in this error.
pub(super) fn waits_for(error: &(dyn Error + 'static)) -> &'static str {
    match IdempotencyError::find(error) {
        Some(IdempotencyError::Locked { .. }) => "the lock of its key, which somebody else holds",
        Some(IdempotencyError::LockLost(_)) => "its next attempt, since its lock was lost",
        _ => BACK_OFF,
    }
}

pub(super) const BACK_OFF: &str = "the end of its back-off";
pub(super) const STORE: &str = "the store, which does not answer";
pub(super) const LETTER: &str = "its dead letter, which is not published";
