//! The options of the layer. Each one has a safe default.

use std::time::Duration;

/// The policy for requests without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Fails the request. The default, because a request must not run unguarded if its key is
    /// missing by mistake.
    #[default]
    Reject,
    /// Runs the inner service without a lock.
    PassThrough,
}

/// The policy for keys that another owner holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLocked {
    /// Fails the request with an error that contains the time to retry. The default, because the
    /// consumer driver can wait outside the service without holding resources.
    #[default]
    Error,
    /// Waits, without keeping the inner service ready. Retries when the attempt of an owner in this
    /// process ends, or after the time that the store specifies.
    Wait {
        /// The maximum total wait. After that, the request fails.
        at_most: Duration,
    },
}

/// The policy for locks that are lost while the inner service is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// Drops the inner future and fails with [`LockLost`](campanile_core::LockLost). The default,
    /// because another owner may start to process the same event at any moment.
    #[default]
    Cancel,
    /// Lets the inner future run, and notifies it through
    /// [`LockHandle::lost`](campanile_core::LockHandle::lost). Its result is recorded if no other owner was
    /// granted the key in the meantime.
    ///
    /// If the handler fails with this lock's [`LockLost`](campanile_core::LockLost), directly or as
    /// a source, the error says nothing about the record, as when the future is dropped. The
    /// attempt is then not counted, unless the handler held the lock longer than `max_hold`.
    Notify,
}

/// The policy for response futures that are dropped while the inner service is running, for example
/// by a timeout around the layer. On a revoke or shutdown of the driver, the attempt is not counted, at
/// most 8 times for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDropped {
    /// Records a failed attempt. The default, so that a poison record behind a timeout runs out of
    /// attempts.
    #[default]
    Fail,
    /// Does not count the attempt, up to a limited number of times per key.
    Release,
    /// Sends nothing to the store; the lock expires.
    Expire,
}

/// The policy for replies that exceed the size limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLargeReply {
    /// Completes the entry without the reply; duplicates have no reply. The default, because the
    /// effect has happened and the entry has to record it.
    #[default]
    KeepNone,
    /// Fails the attempt with [`ReplyTooLarge`](crate::ReplyTooLarge), which is permanent by
    /// default. For applications in which a duplicate without its reply is useless and an operator
    /// has to intervene.
    Fail,
}

/// The policy for keys that get no further attempt, because the last one failed or the error is
/// permanent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// Returns the lock in the error, so that the dead letter can be published under it. The
    /// default, because only an acknowledged dead letter preserves the record.
    #[default]
    ReturnLock,
    /// Moves the entry to FAILED immediately, without a dead letter. The outcome is
    /// [`GivenUp`](campanile_core::Outcome::GivenUp). For stacks without a driver.
    GiveUp,
}
