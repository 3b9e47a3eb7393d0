//! The errors of the idempotency layer.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, Disposition, IdempotencyKey, LockLost, error};

use crate::keeper::{HeldLock, SettledFuture};
use crate::store::StoreError;

/// All errors of the idempotency layer. The handler's own error is the source of [`AttemptFailed`].
///
/// The layer boxes it into the error type of the stack; [`IdempotencyError::find`] finds it again
/// at any level.
#[derive(Debug)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// The request has no key, and the policy rejects such requests.
    MissingKey,
    /// The extractor found an invalid key.
    InvalidKey(BoxError),
    /// Another owner holds the lock. The error says nothing about the record: retry.
    Locked {
        /// The key of the lock.
        key: IdempotencyKey,
        /// When to retry.
        retry_after: Duration,
        /// Resolves when the owner's attempt ends, if the owner uses the same keeper in this
        /// process.
        settled: Option<SettledFuture>,
    },
    /// The last attempt failed, and the next one is not due yet.
    BackingOff {
        /// The key of the attempt.
        key: IdempotencyKey,
        /// When the next attempt is due.
        retry_after: Duration,
        /// The number of attempts.
        attempts: u32,
    },
    /// The key was used for another payload.
    Mismatch {
        /// The key.
        key: IdempotencyKey,
    },
    /// No attempt is left. Contains a give-up lock.
    Exhausted(Exhausted),
    /// The handler failed. Contains its error, and the lock if there will be no further attempt.
    AttemptFailed(AttemptFailed),
    /// The lock was lost while the handler was running. Its result, if any, is not recorded.
    LockLost(LockLost),
    /// The store did not reply, or its entry cannot be read: retry. The error says nothing about the
    /// record: the handler may not have run, or it may have succeeded and its completion could not be
    /// recorded.
    Store(StoreError),
    /// The keeper is shutting down and grants no new locks.
    ShuttingDown,
}

impl IdempotencyError {
    /// Finds an `IdempotencyError` in the source chain of `error`, starting with `error` itself.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        error::find(error)
    }

    /// Returns when to retry, if the error specifies it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Locked { retry_after, .. } | Self::BackingOff { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::AttemptFailed(failed) => failed.retry_after,
            _ => None,
        }
    }

    /// Checks whether the only reason is another attempt at the key: it holds the lock, or it
    /// failed and the backoff is running.
    pub fn is_contention(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::BackingOff { .. })
    }
}

impl fmt::Display for IdempotencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey => f.write_str("the idempotency key is missing or empty"),
            Self::InvalidKey(_) => f.write_str("the idempotency key is invalid"),
            Self::Locked { retry_after, .. } => {
                write!(f, "the key is locked by another owner; retry after {retry_after:?}")
            }
            Self::BackingOff { retry_after, attempts, .. } => {
                write!(f, "backing off for {retry_after:?} after attempt {attempts}")
            }
            Self::Mismatch { .. } => {
                f.write_str("the key was already used for a different payload")
            }
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::AttemptFailed(failed) => failed.fmt(f),
            Self::LockLost(_) => f.write_str("the lock was lost while the handler was running"),
            Self::Store(_) => f.write_str("failed to access the key's entry"),
            Self::ShuttingDown => f.write_str("the lock keeper is shutting down"),
        }
    }
}

impl Error for IdempotencyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::InvalidKey(error) => Some(&**error),
            // `AttemptFailed` displays as itself, so the next source is the handler's error.
            Self::AttemptFailed(failed) => Some(&*failed.source),
            Self::LockLost(lost) => Some(lost),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// A failed attempt of the handler.
#[derive(Debug)]
#[non_exhaustive]
pub struct AttemptFailed {
    /// The key of the attempt.
    pub key: IdempotencyKey,
    /// The number of the attempt, starting at 1.
    pub attempt: u32,
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// The disposition of the error. Also [`Disposition::DeadLetter`] for a last attempt.
    pub disposition: Disposition,
    /// When the next attempt is due, if there is one.
    pub retry_after: Option<Duration>,
    /// The handler's error.
    pub source: BoxError,
    pub(crate) lock: ErrorLock,
}

impl AttemptFailed {
    /// Takes the lock, under which the caller publishes the dead letter and then calls
    /// [`give_up`](HeldLock::give_up).
    ///
    /// The lock can be taken only if no attempt is left, and only once. If it is not taken, this
    /// attempt is recorded as failed.
    pub fn take_lock(&self) -> Option<HeldLock> {
        self.lock.take()
    }
}

impl fmt::Display for AttemptFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of {} failed", self.attempt, self.max_attempts)
    }
}

/// A key that has no attempts left and was neither completed nor given up.
#[derive(Debug)]
#[non_exhaustive]
pub struct Exhausted {
    /// The key.
    pub key: IdempotencyKey,
    /// The number of attempts.
    pub attempts: u32,
    /// The number of give-up locks granted for the key, including this one. The process of each
    /// earlier one crashed or failed to publish the dead letter.
    pub give_ups: u32,
    /// The last error recorded by an attempt. `None` if every attempt crashed.
    pub last_error: Option<Box<str>>,
    pub(crate) lock: ErrorLock,
}

impl Exhausted {
    /// Takes the give-up lock, under which the caller publishes the dead letter and then calls
    /// [`give_up`](HeldLock::give_up). The lock can be taken only once.
    ///
    /// If the lock is not taken, it is released, and the next acquire is exhausted again.
    pub fn take_lock(&self) -> Option<HeldLock> {
        self.lock.take()
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no attempts left after {}", self.attempts)?;
        match &self.last_error {
            Some(error) => write!(f, "; last error: {error}"),
            None => Ok(()),
        }
    }
}

/// The handler panicked, in its call or in its future. The source of a [`AttemptFailed`]. By default, it
/// is retried like any other failure.
///
/// If a panic aborts the process, it is a crash, which counts as an attempt as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(Box<str>);

impl Panicked {
    pub(crate) fn new(panic: Box<dyn Any + Send>) -> Self {
        Self(error::panic_text(panic).unwrap_or_default().into())
    }

    /// Returns the panic message, or an empty string if the payload is not a string.
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

/// A reply exceeds the size limit, and the policy is
/// [`OnLargeReply::Fail`](crate::policy::OnLargeReply::Fail). The source of a [`AttemptFailed`].
///
/// The handler **has run**; only its reply cannot be kept. By default, this error is permanent,
/// because the next attempt would run the handler again with the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyTooLarge {
    /// The size of the reply, in bytes after encoding and encryption.
    pub size: usize,
    /// The size limit.
    pub limit: usize,
}

impl fmt::Display for ReplyTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, limit } = self;
        write!(
            f,
            "the reply of {size} bytes exceeds the limit of {limit}; raise \
             `IdempotencyConfig::with_max_reply_bytes`"
        )
    }
}

impl Error for ReplyTooLarge {}

/// A lock inside an error. A mutex, because `source()` returns only shared references.
pub(crate) struct ErrorLock(Mutex<Option<HeldLock>>);

impl ErrorLock {
    pub(crate) fn new(lock: Option<HeldLock>) -> Self {
        Self(Mutex::new(lock))
    }

    fn take(&self) -> Option<HeldLock> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeldLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows only whether the error contains a lock: the error's other fields describe it.
impl fmt::Debug for ErrorLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lock().is_some() { "held" } else { "none" })
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{FencingToken, LostCause};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key() -> IdempotencyKey {
        IdempotencyKey::new("p-1").unwrap()
    }

    fn locked() -> IdempotencyError {
        IdempotencyError::Locked { key: key(), retry_after: SECOND, settled: None }
    }

    fn backing_off() -> IdempotencyError {
        IdempotencyError::BackingOff { key: key(), retry_after: SECOND, attempts: 2 }
    }

    fn exhausted(last_error: Option<Box<str>>) -> IdempotencyError {
        let lock = ErrorLock::new(None);
        let exhausted = Exhausted { key: key(), attempts: 3, give_ups: 1, last_error, lock };
        IdempotencyError::Exhausted(exhausted)
    }

    fn failed(retry_after: Option<Duration>) -> IdempotencyError {
        IdempotencyError::AttemptFailed(AttemptFailed {
            key: key(),
            attempt: 2,
            max_attempts: 8,
            disposition: Disposition::Retry { after: None },
            retry_after,
            source: "no funds".into(),
            lock: ErrorLock::new(None),
        })
    }

    fn lost() -> IdempotencyError {
        let (token, cause) = (FencingToken::ZERO, LostCause::MaxHold);
        IdempotencyError::LockLost(LockLost { key: key(), token, cause })
    }

    /// Checks the text of the error, and that of its source.
    fn check(error: &dyn Error, text: &str, source: Option<&str>) {
        assert_eq!(error.to_string(), text);
        assert_eq!(error.source().map(ToString::to_string).as_deref(), source, "{text}");
    }

    #[test]
    fn errors_display_the_reason_and_have_its_source() {
        use IdempotencyError::{InvalidKey, Mismatch, MissingKey, ShuttingDown, Store};
        let store = Store(StoreError::timeout("after 1 s"));
        let lost_text = "the lock was lost while the handler was running";
        let lost_source = "lock lost (token 0): the handler held it longer than `max_hold`";
        for (error, text, source) in [
            (MissingKey, "the idempotency key is missing or empty", None),
            (InvalidKey("a".into()), "the idempotency key is invalid", Some("a")),
            (locked(), "the key is locked by another owner; retry after 1s", None),
            (backing_off(), "backing off for 1s after attempt 2", None),
            (Mismatch { key: key() }, "the key was already used for a different payload", None),
            (exhausted(None), "no attempts left after 3", None),
            (exhausted(Some("b".into())), "no attempts left after 3; last error: b", None),
            (failed(None), "attempt 2 of 8 failed", Some("no funds")),
            (lost(), lost_text, Some(lost_source)),
            (store, "failed to access the key's entry", Some("the store did not answer in time")),
            (ShuttingDown, "the lock keeper is shutting down", None),
        ] {
            check(&error, text, source);
        }
    }

    #[test]
    fn only_contention_and_failures_say_when_to_retry() {
        for (error, retry_after, is_contention) in [
            (locked(), Some(SECOND), true),
            (backing_off(), Some(SECOND), true),
            (failed(Some(SECOND)), Some(SECOND), false),
            (failed(None), None, false),
            (exhausted(None), None, false),
        ] {
            assert_eq!(error.retry_after(), retry_after, "{error}");
            assert_eq!(error.is_contention(), is_contention, "{error}");
        }
    }

    #[test]
    fn panic_and_large_reply_display_their_facts() {
        let panicked = Panicked::new(Box::new("no funds"));
        assert_eq!(panicked.message(), "no funds");
        check(&panicked, "the handler panicked: no funds", None);
        check(&Panicked::new(Box::new(7)), "the handler panicked", None);
        let text = ReplyTooLarge { size: 9, limit: 8 }.to_string();
        assert!(text.starts_with("the reply of 9 bytes exceeds the limit of 8;"), "{text}");
    }
}
