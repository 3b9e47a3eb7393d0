//! What the layer does where there is a choice. Each has a safe default.

use std::time::Duration;

/// A request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// An error. The default, for a key that is missing by mistake must not run unguarded.
    #[default]
    Reject,
    /// The inner service runs without a lock.
    PassThrough,
}

/// A key that somebody else holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLocked {
    /// An error that tells when to try again. The default, for the consumer driver waits better:
    /// outside the service, holding nothing.
    #[default]
    Error,
    /// The layer waits, without the inner service's readiness, and tries again when the holder in
    /// this process ends, or after the time that the store tells.
    Wait {
        /// For so long altogether; then the error.
        at_most: Duration,
    },
}

/// A lock that is lost while the inner service works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// The inner future is dropped, and the error is [`LockLost`](campanile_core::LockLost). The
    /// default, for somebody else may begin with the same event at any moment.
    #[default]
    Cancel,
    /// The inner future goes on; [`Lock::lost`](campanile_core::Lock::lost) tells it. Its result is
    /// recorded if nobody else was granted the key meanwhile.
    ///
    /// An error that is, or has as a source, this lock's [`LockLost`](campanile_core::LockLost) says
    /// nothing about the record, as the lock's loss does where the future is dropped for it: unless the
    /// handler held the lock for longer than `max_hold`, the attempt is handed back.
    Notify,
}

/// A response future that is dropped while the inner service works, as by a time-out around the
/// layer. On a revoke or a shutdown of the driver the attempt is always handed back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnAbandoned {
    /// A failed attempt. The default, so that poison behind a time-out comes to an end.
    #[default]
    Fail,
    /// The attempt is handed back, a bounded number of times for each key.
    Release,
    /// Nothing is said to the store; the lock expires by itself.
    Expire,
}

/// A reply that is larger than what is kept of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLargeReply {
    /// The entry is completed without it; duplicates have no reply. The default, for the effect has
    /// happened, and that is what the entry is for.
    #[default]
    KeepNone,
    /// The attempt fails with [`ReplyTooLarge`](crate::ReplyTooLarge), which by default is permanent:
    /// where a duplicate without its reply is worth nothing, and somebody has to look.
    Fail,
}

/// A key that gets no further attempt: the last one failed, or the error is permanent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnGivenUp {
    /// The lock is handed over in the error, for the dead letter to be published under it. The
    /// default, for only an acknowledged dead letter keeps the record.
    #[default]
    HandOver,
    /// The entry becomes FAILED at once, without a dead letter, and the answer is
    /// [`Parked`](campanile_core::Outcome::Parked). For stacks without a driver.
    Reject,
}
