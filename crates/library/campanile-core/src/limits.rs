//! Constants of the protocol, identical for every client and every store.
//!
//! None of them is configurable: a client with smaller limits than another would shorten the other
//! client's live locks.

use std::time::Duration;

/// The maximum TTL of a lock. An `at` that is further away is clamped to it; only a clock that went
/// backwards leaves one.
pub const MAX_LOCK_TTL: Duration = Duration::from_secs(60 * 60);

/// The minimum TTL of a lock. Below it, jitter exceeds the margin for a renewal.
pub const MIN_LOCK_TTL: Duration = Duration::from_millis(500);

/// The maximum backoff of an entry in state RETRYING.
pub const MAX_BACKOFF: Duration = Duration::from_secs(24 * 60 * 60);

/// The maximum number of attempts that an entry counts.
pub const MAX_ATTEMPTS: u16 = u16::MAX;

/// How many times the attempt of a handler that had started is not counted. Every later
/// interruption counts, so that a poison record runs out of attempts.
pub const MAX_INTERRUPTS: u8 = 8;

/// The minimum time from the last grant of an entry until it expires, if an operator decides when. The
/// token of the next grant is then higher although the entry is gone, also if the clock of a replica
/// that takes over is behind by nearly as much.
pub const MIN_RETENTION: Duration = Duration::from_secs(60);

/// The maximum size of one part of an entry's details, in bytes.
pub const MAX_DETAIL_BYTES: usize = 255;

/// The maximum size of a stored error text, in bytes.
pub const MAX_ERROR_BYTES: usize = 512;

/// The maximum size of the name of a handler's step, in bytes.
pub const MAX_STEP_NAME_BYTES: usize = 64;

/// The maximum size of all recorded steps of a key together, with their names and 5 bytes for each, in
/// bytes. Each renewal of the lock rewrites them.
pub const MAX_STEPS_BYTES: usize = 64 * 1024;
