//! Operations on an entry.

use std::time::Duration;

use bytes::Bytes;

use crate::{Details, FencingToken, Fingerprint, Grant, Owner, State, StoreKey};

/// One operation on the entry of a key, as in the table of the protocol.
///
/// An operation carries durations and never a point in time, because only the store's clock
/// decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Acquires the lock and counts an attempt.
    Acquire {
        /// The nonce of this acquisition.
        owner: Owner,
        /// How long the lock lives without a renewal. Limited to
        /// [`limits::MAX_LOCK_TTL`](crate::limits::MAX_LOCK_TTL).
        ttl: Duration,
        /// The number of counted attempts from which the grant is a give-up lock. Zero means
        /// unlimited.
        max_attempts: u16,
        /// The fingerprint of the payload. `None` disables the comparison.
        fingerprint: Option<Fingerprint>,
        /// The largest token that this client has seen from any key.
        floor: FencingToken,
        /// What the entry says about the grant. `None` keeps the details of an earlier grant.
        details: Option<Details>,
    },
    /// Extends the lock to `ttl` from now.
    Renew {
        /// The grant to renew.
        grant: Grant,
        /// The new TTL, from the store's current time.
        ttl: Duration,
    },
    /// Records the success, with the reply for later duplicates.
    Complete {
        /// The grant to settle.
        grant: Grant,
        /// The attempt of the grant. Written if the entry is gone and has to be recreated.
        attempt: u16,
        /// The fingerprint of the grant. Written if the entry is gone and has to be recreated.
        fingerprint: Option<Fingerprint>,
        /// The reply to later duplicates.
        reply: Option<Bytes>,
        /// The details of the grant, if they are kept. `None` drops them.
        details: Option<Details>,
    },
    /// Records a failed attempt.
    Fail {
        /// The grant to settle.
        grant: Grant,
        /// The delay before the next acquire is granted. Limited to
        /// [`limits::MAX_BACKOFF`](crate::limits::MAX_BACKOFF).
        delay: Duration,
        /// Whether the entry has failed permanently: the next grant is a give-up lock, however many attempts are
        /// left.
        last: bool,
        /// The error text. An empty text keeps the previous error.
        error: Box<str>,
    },
    /// Releases the lock and decrements the attempt counter.
    Release {
        /// The grant to release.
        grant: Grant,
        /// Whether the handler had started. If so, the counter is decremented only a limited number
        /// of times.
        ran: bool,
    },
    /// Undoes an acquire with an unknown result: a release that is identified by the nonce alone.
    Cancel {
        /// The nonce of the acquisition.
        owner: Owner,
    },
    /// Records the result of a step of the handler. The first result of a name is kept.
    RecordStep {
        /// The grant that the handler runs under.
        grant: Grant,
        /// The name of the step. Limited to
        /// [`MAX_STEP_NAME_BYTES`](crate::limits::MAX_STEP_NAME_BYTES).
        name: Box<str>,
        /// The result. All steps together are limited to
        /// [`MAX_STEPS_BYTES`](crate::limits::MAX_STEPS_BYTES).
        result: Bytes,
    },
    /// Moves the entry to FAILED.
    GiveUp {
        /// The grant to settle.
        grant: Grant,
        /// The reason. An empty text keeps the last error.
        reason: Box<str>,
    },
    /// Reopens a FAILED entry, on behalf of an operator.
    Redrive {
        /// The current token of the entry. The operation has no effect if the entry has a different
        /// token, because another operation came first.
        token: FencingToken,
        /// Also reopens an entry that is COMPLETED, permanently failed or exhausted.
        force: bool,
    },
}

impl Operation {
    /// Returns the name of the operation, as used in logs, spans and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Renew { .. } => "renew",
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::Release { .. } => "release",
            Self::Cancel { .. } => "cancel",
            Self::RecordStep { .. } => "record_step",
            Self::GiveUp { .. } => "give_up",
            Self::Redrive { .. } => "redrive",
        }
    }
}

/// How long an entry is kept after its last change, by state. Every command carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// For PROCESSING and RETRYING. When such an entry expires, its attempts and last error are
    /// lost.
    pub attempts: Duration,
    /// For COMPLETED. When such an entry expires, a later delivery runs the handler again.
    pub completed: Duration,
    /// For FAILED. When such an entry expires, a poison record gets all its attempts again.
    pub failed: Duration,
}

impl Retention {
    /// Selects the retention of an entry in this state.
    pub const fn of(&self, state: State) -> Duration {
        match state {
            State::Processing | State::Retrying => self.attempts,
            State::Completed => self.completed,
            State::Failed => self.failed,
        }
    }
}

impl Default for Retention {
    /// 7 d, 7 d and 30 d: Kafka keeps the records of a topic for 7 d by default, and an operator
    /// should find the entry of a dead letter for some weeks.
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            attempts: Duration::from_secs(7 * DAY),
            completed: Duration::from_secs(7 * DAY),
            failed: Duration::from_secs(30 * DAY),
        }
    }
}

/// An operation, the key of its entry, and the retention of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The key of the entry.
    pub key: StoreKey,
    /// The operation to apply.
    pub operation: Operation,
    /// How long the entry is kept after the operation.
    pub retention: Retention,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_that_of_the_state() {
        const DAY: Duration = Duration::from_secs(86_400);
        let [attempts, completed, failed] = [DAY * 7, DAY * 7, DAY * 30];
        assert_eq!(Retention::default(), Retention { attempts, completed, failed });
        let [attempts, completed, failed] = [DAY, DAY * 2, DAY * 3];
        let retention = Retention { attempts, completed, failed };
        for (state, expected) in [
            (State::Processing, attempts),
            (State::Retrying, attempts),
            (State::Completed, completed),
            (State::Failed, failed),
        ] {
            assert_eq!(retention.of(state), expected, "{state:?}");
        }
    }

    #[test]
    fn operations_have_the_names_of_the_protocol() {
        let owner = Owner::new(1).unwrap();
        let grant = Grant { token: FencingToken::ZERO, owner };
        let (ttl, delay) = (Duration::ZERO, Duration::ZERO);
        for (name, operation) in [
            (
                "acquire",
                Operation::Acquire {
                    owner,
                    ttl,
                    max_attempts: 1,
                    fingerprint: None,
                    floor: FencingToken::ZERO,
                    details: None,
                },
            ),
            ("renew", Operation::Renew { grant, ttl }),
            (
                "complete",
                Operation::Complete {
                    grant,
                    attempt: 1,
                    fingerprint: None,
                    reply: None,
                    details: None,
                },
            ),
            ("fail", Operation::Fail { grant, delay, last: false, error: "".into() }),
            ("release", Operation::Release { grant, ran: true }),
            ("cancel", Operation::Cancel { owner }),
            (
                "record_step",
                Operation::RecordStep { grant, name: "charge".into(), result: Bytes::new() },
            ),
            ("give_up", Operation::GiveUp { grant, reason: "".into() }),
            ("redrive", Operation::Redrive { token: FencingToken::ZERO, force: false }),
        ] {
            assert_eq!(operation.name(), name);
        }
    }
}
