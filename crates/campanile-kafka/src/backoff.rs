//! The driver's own back-off from servers.

use std::time::Duration;

use campanile_idempotency::Backoff;

/// From a server that does not answer, or refuses, by one who asks for all: that it is back should be
/// noticed soon.
pub(crate) fn impatient() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1))
        .expect("positive, and not above its maximum")
}

/// The same by many, each for itself.
pub(crate) fn each() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
        .expect("positive, and not above its maximum")
}
