//! Errors of all crates, and how to find one's own again behind a [`BoxError`].

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::{FencingToken, IdempotencyKey};

/// The error type of every service here, as in tower's own middleware.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Finds an error of type `E` by walking [`source()`](Error::source) from `error` on.
///
/// ```
/// use campanile_core::error;
/// use std::num::ParseIntError;
///
/// let parse = "x".parse::<u8>().unwrap_err();
/// let wrapped = error::permanent(parse);
/// assert!(error::find::<ParseIntError>(&wrapped).is_some());
/// ```
pub fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    sources(error).find_map(|error| error.downcast_ref())
}

/// The error and its sources, outermost first; at most 256, for an error may be among its own. One
/// whose [`source()`](Error::source) panics is the last.
pub fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    const MOST: usize = 256;
    // Who asks is often a task that serves many records, and the error is one record's.
    let source = |error: &'a (dyn Error + 'static)| {
        catch_unwind(AssertUnwindSafe(|| error.source())).unwrap_or(None)
    };
    std::iter::successors(Some(error), move |&error| source(error)).take(MOST)
}

/// What a panic said, if that was a text. For the crates that catch them: what it carries may panic
/// when it is dropped, and does so in here.
#[doc(hidden)]
pub fn panic_text(panic: Box<dyn Any + Send>) -> Option<String> {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // That one may do the same, and so on.
        std::mem::forget(another);
    }
    text
}

/// Whatever becomes a [`BoxError`]: implemented for all that does, and there for its message.
#[diagnostic::on_unimplemented(
    message = "the service's error `{Self}` does not convert into `BoxError`",
    note = "implement `std::error::Error + Send + Sync + 'static` for it, or use `BoxError`"
)]
pub trait BoxableError: Into<BoxError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> BoxableError for E {}

/// A setting that contradicts, or is out of its range; the text says which, and what would do.
///
/// `Debug` prints the text, since that is what a `main` that returns it shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError(Cow<'static, str>);

impl ConfigError {
    /// An error with this text: lower case, naming the setting and the range.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConfigError {}

/// For constructors whose argument may already be what they want.
impl From<std::convert::Infallible> for ConfigError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The lock is not ours any more.
///
/// Whatever the handler still does, it does without a lock; its result is kept only if the store
/// says that nobody else was granted the key meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockLost {
    /// Whose lock it was.
    pub key: IdempotencyKey,
    /// The grant's token.
    pub token: FencingToken,
    /// How it was lost.
    pub cause: LostCause,
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// The store says that the entry belongs to another grant, or is gone.
    Superseded,
    /// No renewal was confirmed before the local deadline.
    Expired,
    /// The handler ran longer than the ceiling for one lock.
    MaxHold,
    /// The attempt that it was granted for has ended: completed, failed, or dropped as by a time-out.
    /// Work that it has left running is without a lock from then on.
    Ended,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            LostCause::Superseded => "the entry belongs to another grant or is gone",
            LostCause::Expired => "no renewal was confirmed before its deadline",
            LostCause::MaxHold => "the handler held it longer than `max_hold`",
            LostCause::Ended => "the attempt that it was granted for has ended",
        };
        write!(f, "lock lost (token {}): {cause}", self.token)
    }
}

impl Error for LockLost {}

macro_rules! marker {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(BoxError);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }

        impl Error for $name {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&*self.0)
            }
        }
    };
}

marker!(
    /// Marks an error that no further attempt would mend; see [`permanent`].
    Permanent, "permanent error"
);
marker!(
    /// Marks an error after which the record is given up on purpose; see [`skip`].
    Skip, "skipped by the handler"
);
marker!(
    /// Marks an error after which the consumer should stop; see [`stop`].
    Stop, "stopped by the handler"
);

marker!(
    /// From inside the layer, by who did not call the handler: the attempt is handed back.
    #[doc(hidden)]
    NotRun, "the handler has not run"
);
marker!(
    /// From inside the layer, by who has undone what the handler did, for reasons of its own: the attempt is
    /// handed back.
    #[doc(hidden)]
    Undone, "what the handler did was undone"
);

/// Marks an error with the time after which the next attempt is worth it; see [`retry_after`].
#[derive(Debug)]
pub struct RetryAfter {
    source: BoxError,
    after: Duration,
}

impl RetryAfter {
    /// How long to wait before the next attempt.
    pub fn after(&self) -> Duration {
        self.after
    }
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "retry after {:?}", self.after)
    }
}

impl Error for RetryAfter {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// No further attempt would mend this: the record goes to the dead letters, or what stands for them.
pub fn permanent(error: impl Into<BoxError>) -> Permanent {
    Permanent(error.into())
}

/// The handler was not called, and the attempt is handed back. For layers inside.
#[doc(hidden)]
pub fn not_run(error: impl Into<BoxError>) -> NotRun {
    NotRun(error.into())
}

/// What the handler did was undone, and the attempt is handed back. For layers inside.
#[doc(hidden)]
pub fn undone(error: impl Into<BoxError>) -> Undone {
    Undone(error.into())
}

/// The next attempt comes after this time, instead of the back-off's.
pub fn retry_after(error: impl Into<BoxError>, after: Duration) -> RetryAfter {
    RetryAfter { source: error.into(), after }
}

/// The record is given up without a dead letter: its entry becomes FAILED, its offset is committed.
pub fn skip(error: impl Into<BoxError>) -> Skip {
    Skip(error.into())
}

/// The consumer stops, with this record uncommitted; the attempt is handed back, at most 8 times for a
/// key. For what no other record would survive either, as a database that is gone.
pub fn stop(error: impl Into<BoxError>) -> Stop {
    Stop(error.into())
}
