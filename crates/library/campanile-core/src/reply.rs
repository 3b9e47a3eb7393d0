//! The replies to operations on an entry.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::entry::Micros;
use crate::{Details, FencingToken, State, Steps};

/// The reply to an operation, with the time at which it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's clock, in whole microseconds.
    pub now: SystemTime,
    /// The result of the operation.
    pub reply: Reply,
}

impl Answer {
    /// Creates the answer decided at `now`, which is truncated as in [`step`](crate::step()).
    pub fn new(now: SystemTime, reply: Reply) -> Self {
        Self { now: Micros::from(now).to_system_time(), reply }
    }
}

/// The result of an operation, as in the table of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The lock is granted to the caller.
    Acquired {
        /// The fencing token of the grant.
        token: FencingToken,
        /// The number of this attempt, starting at 1.
        attempt: u16,
        /// The steps that earlier attempts have recorded.
        steps: Option<Steps>,
    },
    /// No attempt is left. The caller holds a give-up lock, under which it publishes the dead
    /// letter; the handler must not run.
    Exhausted {
        /// The fencing token of the grant.
        token: FencingToken,
        /// The number of attempts.
        attempt: u16,
        /// The number of give-up locks granted so far, including this one.
        give_ups: u8,
        /// The last error recorded by an attempt.
        last_error: Option<Box<str>>,
    },
    /// Another owner holds the lock.
    Locked {
        /// The time until the lock expires without a renewal.
        remaining: Duration,
    },
    /// The last attempt failed, and the next one is not due yet.
    BackingOff {
        /// The time until the next attempt is due.
        remaining: Duration,
        /// The number of attempts.
        attempt: u16,
    },
    /// The key is COMPLETED.
    Duplicate {
        /// The reply of the first run, if it was kept.
        reply: Option<Bytes>,
        /// The number of attempts until the key was completed.
        attempt: u16,
        /// When the key was completed.
        completed_at: SystemTime,
        /// The details of the grant that completed it, if they were kept.
        details: Option<Details>,
    },
    /// The key is FAILED.
    AlreadyGivenUp {
        /// The number of attempts.
        attempt: u16,
        /// The reason for giving up.
        reason: Option<Box<str>>,
    },
    /// The key was used for another payload.
    Mismatch,
    /// The lock is renewed.
    Renewed,
    /// The entry is COMPLETED by this grant.
    Completed,
    /// The failed attempt is recorded.
    Retrying,
    /// The lock is released, and the attempt is not counted.
    Released,
    /// The step has a result: this one, or that of an earlier command.
    StepRecorded,
    /// No change: the name of the step, or all steps together, would exceed their limit, or the recorded
    /// steps cannot be read.
    StepTooLarge,
    /// The entry is FAILED by this grant.
    GivenUp,
    /// The entry can be acquired again.
    Reopened,
    /// No change: this grant had already ended with the entry in this state.
    Settled(State),
    /// No change: the entry is gone or belongs to another grant.
    Lost,
    /// No change: the stored value cannot be read.
    Corrupt,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_decided_at_a_whole_microsecond() {
        let time = |nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
        let answer = Answer::new(time(1_999), Reply::Renewed);
        assert_eq!((answer.now, answer.reply), (time(1_000), Reply::Renewed));
    }
}
