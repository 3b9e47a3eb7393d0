//! What the layer answers when there is no outcome.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Disposition, IdempotencyKey, LockLost, error};

use crate::keeper::{HeldLock, Settled};
use crate::store::StoreError;

/// Every error of the layer itself, and the handler's as the source of [`Failed`].
///
/// It is boxed into the stack's error type; [`IdempotencyError::find`] gets it back at every place.
#[derive(Debug)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// The request has no key, and the policy is to reject that.
    MissingKey,
    /// The extractor found something that is no key.
    InvalidKey(BoxError),
    /// Somebody else holds the lock. It says nothing about the record: try again.
    Locked {
        /// Whose lock.
        key: IdempotencyKey,
        /// When to try again.
        retry_after: Duration,
        /// Resolves when the holder ends, if it is in this process under the same keeper.
        settled: Option<Settled>,
    },
    /// The last attempt failed, and the next is not due.
    BackingOff {
        /// Whose attempt.
        key: IdempotencyKey,
        /// When it is due.
        retry_after: Duration,
        /// How many attempts there were.
        attempts: u32,
    },
    /// The key was used for another payload.
    Mismatch {
        /// Which key.
        key: IdempotencyKey,
    },
    /// No attempt is left. Carries a burial lock.
    Exhausted(Exhausted),
    /// The handler failed. Carries its error, and the lock if there is to be no further attempt.
    Failed(Failed),
    /// The lock was lost while the handler ran; its result, if any, is not recorded.
    LockLost(LockLost),
    /// The store gave no answer. It says nothing about the record: try again.
    Store(StoreError),
    /// The keeper takes no new locks.
    ShuttingDown,
}

impl IdempotencyError {
    /// Finds it by walking `source()` from `error` on.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        error::find(error)
    }

    /// When to try again, if the error tells.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Locked { retry_after, .. } | Self::BackingOff { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::Failed(failed) => failed.retry_after,
            _ => None,
        }
    }

    /// Whether it is only that somebody else is at work on the key, or was: locked or backing off.
    pub fn is_contention(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::BackingOff { .. })
    }
}

impl fmt::Display for IdempotencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey => f.write_str("the request has no idempotency key, or an empty one"),
            Self::InvalidKey(_) => f.write_str("the idempotency key is invalid"),
            Self::Locked { retry_after, .. } => {
                write!(f, "the key is locked by another holder, retry after {retry_after:?}")
            }
            Self::BackingOff { retry_after, attempts, .. } => {
                write!(f, "backing off for {retry_after:?} after attempt {attempts}")
            }
            Self::Mismatch { .. } => f.write_str("the key was used for another payload"),
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::Failed(failed) => failed.fmt(f),
            Self::LockLost(_) => f.write_str("the handler ran beyond its lock"),
            Self::Store(_) => f.write_str("no answer about the key's entry"),
            Self::ShuttingDown => f.write_str("the lock keeper is shutting down"),
        }
    }
}

impl Error for IdempotencyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::InvalidKey(error) => Some(&**error),
            // It displays as itself, so the handler's error comes next.
            Self::Failed(failed) => Some(&*failed.source),
            Self::LockLost(lost) => Some(lost),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// A handler's failed attempt, as recorded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed {
    /// Whose attempt.
    pub key: IdempotencyKey,
    /// Which attempt it was; the first is 1.
    pub attempt: u32,
    /// What the error means. [`Disposition::DeadLetter`] also for a last attempt.
    pub disposition: Disposition,
    /// When the next attempt is due, if there is one.
    pub retry_after: Option<Duration>,
    /// The handler's error.
    pub source: BoxError,
    pub(crate) lock: Handover,
}

impl Failed {
    /// The lock, to publish the dead letter under and then [`reject`](HeldLock::reject); once, and
    /// only where no attempt is left. Not taken, it counts as the failed attempt that it was.
    pub fn take_lock(&self) -> Option<HeldLock> {
        self.lock.take()
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} failed", self.attempt)
    }
}

/// A key whose attempts are used up, without its record having been dealt with.
#[derive(Debug)]
#[non_exhaustive]
pub struct Exhausted {
    /// Whose attempts.
    pub key: IdempotencyKey,
    /// How many there were.
    pub attempts: u32,
    /// How many burial locks were granted for it, this one included: each but the last crashed, or
    /// could not publish.
    pub burials: u32,
    /// The last error that an attempt left. None if every attempt crashed.
    pub last_error: Option<Box<str>>,
    pub(crate) lock: Handover,
}

impl Exhausted {
    /// The burial lock, to publish the dead letter under and then [`reject`](HeldLock::reject); once.
    /// Not taken, it is let go, and the next acquire is exhausted again.
    pub fn take_lock(&self) -> Option<HeldLock> {
        self.lock.take()
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no attempt left after {}", self.attempts)?;
        match &self.last_error {
            Some(error) => write!(f, ", the last failed with: {error}"),
            None => Ok(()),
        }
    }
}

/// The handler panicked, in its call or in its future: the source of a [`Failed`]. By default it is
/// tried again, as any other failure.
///
/// Where a panic aborts the process, that is a crash, which counts as an attempt as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(Box<str>);

impl Panicked {
    pub(crate) fn new(panic: Box<dyn Any + Send>) -> Self {
        Self(error::panic_text(panic).unwrap_or_default().into())
    }

    /// What it said; empty if that was no text.
    pub fn message(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            "" => f.write_str("the handler panicked"),
            message => write!(f, "the handler panicked: {message}"),
        }
    }
}

impl Error for Panicked {}

/// A reply that is larger than what is kept of one, where
/// [`OnLargeReply::Fail`](crate::policy::OnLargeReply::Fail) was chosen: the source of a [`Failed`].
///
/// The handler **has run**; only its reply cannot be kept. By default it is permanent, for the next
/// attempt would run it again and come to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyTooLarge {
    /// Of the reply, in bytes after encoding and encryption.
    pub size: usize,
    /// What is kept at most.
    pub most: usize,
}

impl fmt::Display for ReplyTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, most } = self;
        write!(
            f,
            "the reply has {size} bytes, of which {most} are kept at most: raise \
             `IdempotencyLayer::with_max_reply_bytes`"
        )
    }
}

impl Error for ReplyTooLarge {}

/// A lock that travels in an error. A mutex, because `source()` gives shared references only.
#[derive(Debug)]
pub(crate) struct Handover(Mutex<Option<HeldLock>>);

impl Handover {
    pub(crate) fn new(lock: Option<HeldLock>) -> Self {
        Self(Mutex::new(lock))
    }

    fn take(&self) -> Option<HeldLock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
