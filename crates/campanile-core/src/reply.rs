//! What an operation on an entry answers.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::entry::Micros;
use crate::{FencingToken, State};

/// The reply to an operation, with the time by which it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's clock, in whole microseconds.
    pub now: SystemTime,
    /// What came of it.
    pub reply: Reply,
}

impl Answer {
    /// The reply that was decided by `now`, which is truncated as [`step`](crate::step()) does.
    pub fn new(now: SystemTime, reply: Reply) -> Self {
        Self { now: Micros::from(now).to_system_time(), reply }
    }
}

/// What came of an operation, as in the table of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The lock is the caller's.
    Acquired {
        /// The grant's fencing token.
        token: FencingToken,
        /// Which attempt this is; the first is 1.
        attempt: u16,
    },
    /// No attempt is left: a lock to publish the dead letter under, not to run the handler.
    Exhausted {
        /// The grant's fencing token.
        token: FencingToken,
        /// How many attempts there were.
        attempt: u16,
        /// How many burial locks were granted, this one included.
        burials: u8,
        /// The last error that an attempt left.
        last_error: Option<Box<str>>,
    },
    /// Another owner holds the lock.
    Locked {
        /// Until it expires, if nobody renews it.
        remaining: Duration,
    },
    /// The last attempt failed, and the next is not due.
    BackingOff {
        /// Until it is.
        remaining: Duration,
        /// How many attempts there were.
        attempt: u16,
    },
    /// The key is COMPLETED.
    Duplicate {
        /// What the first run answered, if it was kept.
        reply: Option<Bytes>,
        /// How many attempts it took.
        attempt: u16,
        /// When it was completed.
        completed_at: SystemTime,
    },
    /// The key is FAILED for good.
    Parked {
        /// How many attempts there were.
        attempt: u16,
        /// Why it was given up.
        reason: Option<Box<str>>,
    },
    /// The key was used for another payload.
    Mismatch,
    /// The lock lives on.
    Renewed,
    /// The entry is COMPLETED by this grant.
    Completed,
    /// The failed attempt is recorded.
    Retrying,
    /// The lock is free, the attempt handed back.
    Released,
    /// The entry is FAILED by this grant.
    Rejected,
    /// The entry can be acquired again.
    Reopened,
    /// Nothing was changed: this grant had ended already, and this is how.
    Settled(State),
    /// Nothing was changed: the entry is gone or belongs to another grant.
    Lost,
    /// Nothing was changed: what is stored there cannot be read.
    Corrupt,
}
