//! The wall clock.

use std::time::SystemTime;

/// Reads the wall clock. Timestamps of records, tokens and certificates come from other machines.
pub fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "Kafka's timestamps are wall-clock time")]
    SystemTime::now()
}
