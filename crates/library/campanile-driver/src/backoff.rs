//! The driver's backoffs for unavailable servers.

use std::time::Duration;

use campanile_idempotency::Backoff;

/// Creates the backoff of a caller that retries on behalf of all others, for a server that does not
/// answer or refuses. It is short, because a recovery should be noticed soon.
pub fn server_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1))
        .expect("the initial delay is positive and at most the maximum")
}

/// Creates the same for many callers that each retry for themselves.
pub(crate) fn record_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
        .expect("the initial delay is positive and at most the maximum")
}
