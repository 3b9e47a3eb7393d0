//! What is to happen to a record whose handler failed.

use std::time::Duration;

/// What a handler's error means for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// The attempt has failed; the next comes after this time, or after the back-off's.
    Retry {
        /// Instead of the back-off's; at most a day.
        after: Option<Duration>,
    },
    /// It says nothing about the record: the attempt is handed back, a bounded number of times.
    Release,
    /// No further attempt would mend it: to the dead letters, or what stands for them.
    DeadLetter,
    /// Given up on purpose, without a dead letter.
    Skip,
    /// The consumer stops, with this record uncommitted. It says nothing about the record: the attempt
    /// is handed back, a bounded number of times.
    Stop,
}
