//! The driver's own back-off from servers.

use std::time::Duration;

use campanile_idempotency::Backoff;

/// From a server that does not answer, or refuses: that it is back should be noticed soon.
pub(crate) fn impatient() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
        .expect("positive, and not above its maximum")
}
