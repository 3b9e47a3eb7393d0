//! The log events about a lock. Those with the field `campanile.duplicate_effect_possible` report
//! that the handler's effect may happen twice; its value is the cause.

use campanile_core::{Details, FencingToken, LostCause, StoreKey};
use tracing::field::display;

use crate::store::StoreError;

/// What the events about a lock have in common.
#[derive(Debug)]
pub(super) struct LockEvents {
    pub(super) key: StoreKey,
    pub(super) token: FencingToken,
    /// The details of the grant, with the name of this process and the position of the record.
    pub(super) details: Details,
}

macro_rules! event {
    ($lock:expr, $level:ident, $duplicate_effect_possible:expr, $($rest:tt)+) => {
        tracing::event!(
            tracing::Level::$level,
            campanile.duplicate_effect_possible = $duplicate_effect_possible,
            record = $lock.details.coordinates().map(display),
            namespace = $lock.key.namespace().as_str(),
            key_digest = %$lock.key.digest_hex(),
            token = $lock.token.get(),
            instance = $lock.details.instance().as_deref(),
            $($rest)+
        )
    };
}

impl LockEvents {
    /// Logs that the lock is lost: perhaps before its handler has started, or with a handler that
    /// is rolled back.
    pub(super) fn log_lost(&self, cause: LostCause, is_effect_possible: bool) {
        event!(self, WARN, is_effect_possible.then_some("lock_lost"), ?cause, "lock lost");
    }

    /// Logs that the entry belongs to another grant after the handler has succeeded.
    pub(super) fn log_completion_refused(&self) {
        let message =
            "completion refused: the key was granted to another owner while the handler ran";
        event!(self, ERROR, "completion_refused", "{message}");
    }

    /// Logs that the store has not recorded the completion yet.
    pub(super) fn log_completion_pending(&self, error: Option<&StoreError>) {
        let error = error.map(display);
        let message = "the handler has succeeded, and the store does not record it; retrying";
        event!(self, WARN, "completion_pending", error, "{message}");
    }

    /// Logs that the completion will never be recorded.
    pub(super) fn log_completion_failed(&self, error: &StoreError) {
        let message = "the handler has succeeded, and its completion cannot be recorded";
        event!(self, ERROR, "completion_failed", %error, "{message}");
    }
}
