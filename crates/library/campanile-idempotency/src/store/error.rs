//! Errors of stores.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;

/// The error of a command that a store did not answer, or answered with data that cannot be read.
///
/// It says nothing about the record, so no attempt is counted for it. Unless the error was created
/// by [`not_sent`](Self::not_sent), the command may have been applied, and the lock keeper repeats
/// or cancels it. `Clone`, because one failure is the result of every command in a batch.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    was_sent: bool,
    source: Arc<dyn Error + Send + Sync>,
}

/// The kind of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store was not reachable or refused the command. It is unknown whether the command was
    /// applied, unless the error was created by [`StoreError::not_sent`].
    Unavailable,
    /// The store did not reply in time. It is unknown whether the command was applied.
    Timeout,
    /// The store sent an invalid reply, or the stored value is not an entry. Nothing was changed.
    Unreadable,
    /// The command was not sent, because too many commands are unanswered, as in an outage. Nothing
    /// was changed.
    Overloaded,
    /// The store's configuration contradicts what is stored, for example another number of buckets.
    /// Nothing was changed, and no retry helps: the consumer driver stops.
    Misconfigured,
}

impl StoreErrorKind {
    /// The command may succeed once an outage is over.
    pub(crate) fn is_outage(self) -> bool {
        match self {
            Self::Unavailable | Self::Timeout | Self::Overloaded => true,
            Self::Unreadable | Self::Misconfigured => false,
        }
    }
}

impl StoreError {
    /// Creates an error for a store that was not reachable or refused the command.
    pub fn unavailable(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Unavailable, source)
    }

    /// Creates an error for a store that was not reachable, if nothing was sent: the command was
    /// definitely not applied, and nothing has to be undone.
    pub fn not_sent(source: impl Into<BoxError>) -> Self {
        Self { was_sent: false, ..Self::unavailable(source) }
    }

    /// Marks the command as possibly applied, because an earlier try was sent.
    pub fn possibly_sent(self) -> Self {
        Self { was_sent: true, ..self }
    }

    pub(crate) fn overloaded(source: impl Into<BoxError>) -> Self {
        Self { was_sent: false, ..Self::new(StoreErrorKind::Overloaded, source) }
    }

    /// Creates an error for a store that did not reply in time.
    pub fn timeout(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Timeout, source)
    }

    /// Creates an error for an invalid reply or entry.
    pub fn unreadable(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Unreadable, source)
    }

    /// Creates an error for a configuration that contradicts what is stored.
    pub fn misconfigured(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Misconfigured, source)
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// A command that may have been sent may also have been applied.
    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent
    }

    fn new(kind: StoreErrorKind, source: impl Into<BoxError>) -> Self {
        Self { kind, was_sent: true, source: Arc::from(source.into()) }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "the store is unavailable",
            StoreErrorKind::Timeout => "the store did not answer in time",
            StoreErrorKind::Unreadable => "the store returned unreadable data",
            StoreErrorKind::Overloaded => "too many store commands are unanswered",
            StoreErrorKind::Misconfigured => "the store is not configured as its data requires",
        })
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_whether_the_command_may_have_been_applied() {
        use StoreErrorKind::{Misconfigured, Overloaded, Timeout, Unavailable, Unreadable};
        for (error, kind, was_sent, is_outage, text) in [
            (StoreError::unavailable("x"), Unavailable, true, true, "the store is unavailable"),
            (StoreError::not_sent("x"), Unavailable, false, true, "the store is unavailable"),
            (StoreError::timeout("x"), Timeout, true, true, "the store did not answer in time"),
            (
                StoreError::overloaded("x"),
                Overloaded,
                false,
                true,
                "too many store commands are unanswered",
            ),
            (
                StoreError::unreadable("x"),
                Unreadable,
                true,
                false,
                "the store returned unreadable data",
            ),
            (
                StoreError::misconfigured("x"),
                Misconfigured,
                true,
                false,
                "the store is not configured as its data requires",
            ),
        ] {
            assert_eq!((error.kind(), error.was_sent()), (kind, was_sent), "{error}");
            assert_eq!((kind.is_outage(), error.to_string().as_str()), (is_outage, text));
            assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("x"));
            assert!(error.possibly_sent().was_sent());
        }
    }
}
