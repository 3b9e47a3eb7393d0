//! The error types of all crates, and functions to find an error behind a [`BoxError`].

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::{FencingToken, IdempotencyKey};

/// The error type of every service in these crates, as in tower's own middleware.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Finds an error of type `E` in the source chain of `error`, starting with `error` itself.
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

/// Iterates over the error and its sources, outermost first.
///
/// It yields at most 256 errors, because an error may be among its own sources. It ends at an error
/// with a panicking [`source()`](Error::source).
pub fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    chain(error).filter(|error| !error.is::<Mark>()).take(MAX_SOURCES)
}

/// Like [`sources`], with the [`Mark`]s.
#[doc(hidden)]
pub fn marked_sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    chain(error).take(MAX_SOURCES)
}

const MAX_SOURCES: usize = 256;

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    // The caller is often a task that serves many records, and a panic concerns only one of them.
    let source = |error: &'a (dyn Error + 'static)| match error.downcast_ref::<Mark>() {
        Some(mark) => Some(&*mark.error as &(dyn Error + 'static)),
        None => catch_unwind(AssertUnwindSafe(|| error.source())).unwrap_or(None),
    };
    std::iter::successors(Some(error), move |&error| source(error))
}

/// Extracts the message of a panic, if the payload is a string.
///
/// For the crates that catch panics. Dropping the payload may panic again; this function contains
/// that panic.
#[doc(hidden)]
pub fn panic_text(panic: Box<dyn Any + Send>) -> Option<String> {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Dropping the second payload could panic as well, and so on.
        std::mem::forget(another);
    }
    text
}

/// A type that converts into [`BoxError`]. Implemented for all such types; it exists for its
/// diagnostic message.
#[diagnostic::on_unimplemented(
    message = "the service's error `{Self}` does not convert into `BoxError`",
    note = "implement `std::error::Error + Send + Sync + 'static` for it, or use `BoxError`"
)]
pub trait BoxableError: Into<BoxError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> BoxableError for E {}

/// A setting that is out of range or contradicts another one. The message names the setting and the
/// accepted values.
///
/// `Debug` prints the message, because that is what a `main` that fails with this error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError(Cow<'static, str>);

impl ConfigError {
    /// Creates an error with this message: lower case, with the name of the setting and its range.
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

/// The lock is no longer held.
///
/// The handler now runs without a lock. Its result is kept only if the store reports that no other
/// owner was granted the key in the meantime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockLost {
    /// The key of the lock.
    pub key: IdempotencyKey,
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// The reason for the loss.
    pub cause: LostCause,
}

/// The reason why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// The store reports that the entry belongs to another grant, or is gone.
    Superseded,
    /// No renewal was confirmed before the local deadline.
    Expired,
    /// The handler ran longer than the maximum hold time of a lock.
    MaxHold,
    /// The attempt for which the lock was granted has ended: it completed, failed, or was dropped,
    /// for example by a timeout. Work that the attempt left running has no lock from then on.
    Ended,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            LostCause::Superseded => "the entry belongs to another grant or is gone",
            LostCause::Expired => "no renewal was confirmed before its deadline",
            LostCause::MaxHold => "the handler held it longer than `max_hold`",
            LostCause::Ended => "the attempt for which it was granted has ended",
        };
        write!(f, "lock lost (token {}): {cause}", self.token)
    }
}

impl Error for LockLost {}

/// A request that has no lock; see [`Request::lock`](crate::Request::lock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoLock;

impl fmt::Display for NoLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the request has no lock: its handler is not inside an `IdempotencyLayer`, or a policy of the layer \
             (for requests without a key, or while the store is unavailable) let it through without one",
        )
    }
}

impl Error for NoLock {}

/// What a marker says about an error.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    Permanent,
    Skip,
    Stop,
    NotRun,
    Undone,
    RetryAfter(Duration),
    Unavailable(Option<&'static str>),
}

/// The source of each marked error, which stands for the error that was marked.
///
/// Error types that hide an error, such as `anyhow::Error` and variants with `#[error(transparent)]`, pass its
/// source on. So the marker is found there.
#[doc(hidden)]
#[derive(Debug)]
pub struct Mark {
    marker: Marker,
    error: BoxError,
}

impl Mark {
    fn new(marker: Marker, error: impl Into<BoxError>) -> Self {
        Self { marker, error: error.into() }
    }

    /// Finds the marker of this error, if it is a mark.
    pub fn marker_of(error: &(dyn Error + 'static)) -> Option<Marker> {
        error.downcast_ref().map(|mark: &Self| mark.marker)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Mark {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permanent => f.write_str("permanent error"),
            Self::Skip => f.write_str("skipped by the handler"),
            Self::Stop => f.write_str("stopped by the handler"),
            Self::NotRun => f.write_str("the handler did not run"),
            Self::Undone => f.write_str("the handler's effect was rolled back"),
            Self::RetryAfter(after) => write!(f, "retry after {after:?}"),
            Self::Unavailable(Some(dependency)) => write!(f, "`{dependency}` is unavailable"),
            Self::Unavailable(None) => f.write_str("a dependency is unavailable"),
        }
    }
}

macro_rules! marked {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Mark);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.marker.fmt(f)
            }
        }

        impl Error for $name {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
    )*};
}

marked! {
    /// Marks an error that no further attempt can fix; see [`permanent`].
    Permanent,
    /// Marks an error after which the record is deliberately given up; see [`skip`].
    Skip,
    /// Marks an error after which the consumer stops; see [`stop`].
    Stop,
    /// Returned by inner layers that did not call the handler: the attempt is not counted.
    NotRun,
    /// Returned by inner layers that rolled back the handler's effect for reasons of their own: the
    /// attempt is not counted.
    Undone,
    /// Marks an error with the delay after which a retry is worthwhile; see [`retry_after`].
    RetryAfter,
    /// Marks an error that says that a dependency of the handler is unavailable; see [`unavailable`].
    Unavailable,
}

impl Unavailable {
    /// Names the dependency. Then only records that have failed for it wait.
    #[must_use]
    pub fn of(self, dependency: &'static str) -> Self {
        Self(Mark { marker: Marker::Unavailable(Some(dependency)), ..self.0 })
    }
}

/// Marks an error as permanent: no further attempt can succeed. The record goes to the dead-letter
/// topic, or to the configured alternative.
///
/// A handler that returns [`BoxError`] converts the marked error with `into()`:
///
/// ```
/// use campanile_core::{BoxError, error};
///
/// async fn charge(cents: i64) -> Result<(), BoxError> {
///     if cents < 0 {
///         return Err(error::permanent("the amount is negative").into());
///     }
///     Ok(())
/// }
/// ```
pub fn permanent(error: impl Into<BoxError>) -> Permanent {
    Permanent(Mark::new(Marker::Permanent, error))
}

/// Marks an error of an inner layer that did not call the handler. The attempt is not counted.
pub fn not_run(error: impl Into<BoxError>) -> NotRun {
    NotRun(Mark::new(Marker::NotRun, error))
}

/// Marks an error of an inner layer that rolled back the handler's effect. The attempt is not
/// counted.
pub fn undone(error: impl Into<BoxError>) -> Undone {
    Undone(Mark::new(Marker::Undone, error))
}

/// Marks an error with the delay before the next attempt, which replaces the backoff.
///
/// For failures whose end is known, such as a rate limit:
/// `Err(error::retry_after("rate limited", Duration::from_secs(30)).into())`.
pub fn retry_after(error: impl Into<BoxError>, after: Duration) -> RetryAfter {
    RetryAfter(Mark::new(Marker::RetryAfter(after), error))
}

/// Marks an error that says nothing about the record: what the handler depends on is unavailable, such as a
/// payment provider or a database. No attempt is counted, however long it takes, and the lock is released.
///
/// The record waits. Once a second record has failed, the driver starts no further records of the same service,
/// except one at a time to find out whether the dependency is back, at most 4 s apart. With the first success, all
/// continue. If only some records need the dependency, [name it](Unavailable::of): then only records that have
/// failed for it wait.
///
/// The error may be that of the record after all. If the record fails like that 8 times while others succeed, and
/// for 10 minutes, its attempts count from then on; for a dependency with a name only after 24 hours, because others
/// may not need it. A restart begins both anew. So mark only what says nothing about the record: a refused
/// connection, or a 503, but not each 500; and a rate limit with [`retry_after`].
///
/// ```
/// use campanile_core::{BoxError, error};
///
/// # struct Response { status: u16 }
/// # async fn post(_: i64) -> Result<Response, std::io::Error> { Ok(Response { status: 200 }) }
/// async fn charge(cents: i64) -> Result<(), BoxError> {
///     let response = post(cents).await.map_err(|error| error::unavailable(error).of("stripe"))?;
///     match response.status {
///         200..300 => Ok(()),
///         status @ 502..=504 => {
///             Err(error::unavailable(format!("status {status}")).of("stripe").into())
///         }
///         status => Err(error::permanent(format!("status {status}")).into()),
///     }
/// }
/// ```
pub fn unavailable(error: impl Into<BoxError>) -> Unavailable {
    Unavailable(Mark::new(Marker::Unavailable(None), error))
}

/// Marks an error after which the record is given up without a dead letter: its entry becomes
/// FAILED and its offset is committed.
///
/// For records that need no processing and no operator, such as an order that was canceled:
/// `Err(error::skip("the order was canceled").into())`.
pub fn skip(error: impl Into<BoxError>) -> Skip {
    Skip(Mark::new(Marker::Skip, error))
}

/// Marks an error after which the consumer stops and leaves this record uncommitted. Up to 8 times
/// per key, the attempt is not counted.
///
/// For failures that every other record would hit as well, such as a database that is unavailable:
/// `Err(error::stop(database_error).into())`.
pub fn stop(error: impl Into<BoxError>) -> Stop {
    Stop(Mark::new(Marker::Stop, error))
}
