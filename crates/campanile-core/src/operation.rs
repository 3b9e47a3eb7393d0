//! What can be asked of an entry.

use std::time::Duration;

use bytes::Bytes;

use crate::{FencingToken, Fingerprint, Grant, Owner, State, StoreKey};

/// One operation on the entry of a key, as in the table of the protocol.
///
/// It carries durations and never a point in time: only the store's clock decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Take the lock, and count an attempt.
    Acquire {
        /// The nonce of this acquisition.
        owner: Owner,
        /// How long the lock lives without a renewal; limited to [`limits::MAX_LOCK_TTL`](crate::limits::MAX_LOCK_TTL).
        ttl: Duration,
        /// With as many attempts counted, the grant is a burial lock. Zero: unlimited.
        max_attempts: u16,
        /// Which payload the key is used for; `None`: not compared.
        fingerprint: Option<Fingerprint>,
        /// The largest token that this client has seen from any key.
        floor: FencingToken,
    },
    /// Keep the lock for another `ttl` from now.
    Renew {
        /// The grant to keep.
        grant: Grant,
        /// From the store's now.
        ttl: Duration,
    },
    /// Record the success, with the reply to replay.
    Complete {
        /// The grant that is settled.
        grant: Grant,
        /// The grant's attempt, for an entry that is gone and is adopted.
        attempt: u16,
        /// The grant's fingerprint, for the same.
        fingerprint: Option<Fingerprint>,
        /// What later duplicates are answered with.
        reply: Option<Bytes>,
    },
    /// Record a failed attempt.
    Fail {
        /// The grant that is settled.
        grant: Grant,
        /// No acquire is granted before this has passed; limited to [`limits::MAX_BACKOFF`](crate::limits::MAX_BACKOFF).
        delay: Duration,
        /// Whether the entry is doomed: the next grant is a burial lock, whatever the attempts.
        last: bool,
        /// The error's text; empty keeps the one before.
        error: Box<str>,
    },
    /// Give the lock up and hand the attempt back.
    Release {
        /// The grant that is given up.
        grant: Grant,
        /// Whether the handler had begun; then the attempt is handed back a bounded number of times.
        ran: bool,
    },
    /// Undo an acquire whose answer is unknown: a release by the nonce alone.
    Cancel {
        /// The nonce of the acquisition.
        owner: Owner,
    },
    /// Make the entry FAILED for good.
    Reject {
        /// The grant that is settled.
        grant: Grant,
        /// Why; empty keeps the last error.
        reason: Box<str>,
    },
    /// Open a FAILED entry again, by an operator.
    Redrive {
        /// The token that the entry has; another means that somebody was faster.
        token: FencingToken,
        /// Also reopen what is COMPLETED, or doomed or exhausted.
        force: bool,
    },
}

impl Operation {
    /// The operation's word, as in logs, spans and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Renew { .. } => "renew",
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::Release { .. } => "release",
            Self::Cancel { .. } => "cancel",
            Self::Reject { .. } => "reject",
            Self::Redrive { .. } => "redrive",
        }
    }
}

/// How long an entry outlives its last change, by state. Every command carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// PROCESSING and RETRYING. What is lost with it: the attempts and the last error.
    pub attempts: Duration,
    /// COMPLETED. What is lost with it: a later delivery runs the handler again.
    pub completed: Duration,
    /// FAILED. What is lost with it: poison gets its attempts again.
    pub failed: Duration,
}

impl Retention {
    /// The one that applies to an entry in this state.
    pub const fn of(&self, state: State) -> Duration {
        match state {
            State::Processing | State::Retrying => self.attempts,
            State::Completed => self.completed,
            State::Failed => self.failed,
        }
    }
}

impl Default for Retention {
    /// 7 d, 7 d and 30 d: a topic keeps its records for 7 d by Kafka's default, and whoever looks
    /// after dead letters should find the entry for some weeks.
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            attempts: Duration::from_secs(7 * DAY),
            completed: Duration::from_secs(7 * DAY),
            failed: Duration::from_secs(30 * DAY),
        }
    }
}

/// An operation, the entry it is for, and how long to keep that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Whose entry.
    pub key: StoreKey,
    /// What to do.
    pub operation: Operation,
    /// How long the entry is kept after it.
    pub retention: Retention,
}
