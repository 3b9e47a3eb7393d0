//! What happens to a record after its handler failed.

use std::time::Duration;

/// The meaning of a handler's error for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// The attempt failed; the next one runs after `after`, or after the backoff.
    Retry {
        /// Replaces the backoff; at most one day.
        after: Option<Duration>,
    },
    /// The error says nothing about the record. The attempt is not counted, up to a limited number
    /// of times.
    Release,
    /// A dependency of the handler is unavailable, which says nothing about the record. The attempt is not
    /// counted, and the consumer waits for the dependency; see [`error::unavailable`](crate::error::unavailable).
    Unavailable {
        /// The name of the dependency, if only some records need it.
        dependency: Option<&'static str>,
    },
    /// No further attempt can succeed: the record goes to the dead-letter topic, or to the
    /// configured alternative.
    DeadLetter,
    /// The record is deliberately given up, without a dead letter.
    Skip,
    /// The consumer stops and leaves this record uncommitted. The error says nothing about the
    /// record; the attempt is not counted, up to a limited number of times.
    Stop,
}
