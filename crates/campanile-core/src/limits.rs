//! Constants of the protocol: the same for every client and every store.
//!
//! A client with smaller limits than another would shorten the other's live lock, so none of these
//! is an option.

use std::time::Duration;

/// The longest time to live of a lock. An `at` further away is clamped to it: a clock went back.
pub const MAX_LOCK_TTL: Duration = Duration::from_secs(60 * 60);

/// The shortest time to live of a lock: below it the margin for a renewal is lost in jitter.
pub const MIN_LOCK_TTL: Duration = Duration::from_millis(500);

/// The longest back-off of an entry that is retrying.
pub const MAX_BACKOFF: Duration = Duration::from_secs(24 * 60 * 60);

/// The most attempts that an entry counts.
pub const MAX_ATTEMPTS: u16 = u16::MAX;

/// How often the attempt of a handler that had begun is handed back; after that poison must end.
pub const MAX_INTERRUPTS: u8 = 8;

/// The most bytes that are kept of an error's text.
pub const MAX_ERROR_BYTES: usize = 512;
