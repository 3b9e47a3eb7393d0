//! Why a store gave no answer.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;

/// A store gave no answer. It says nothing about the record: no attempt is counted for it.
///
/// `Clone`, since one failure answers a whole batch.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    was_sent: bool,
    source: Arc<dyn Error + Send + Sync>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Not reached, or it refused. Whether the command was applied is not known, unless
    /// [`StoreError::not_sent`] says so.
    Unavailable,
    /// No answer in time. Whether the command was applied is not known.
    Timeout,
    /// It answered what is no answer, or holds under the key what is no entry. Nothing was changed.
    Unreadable,
    /// Not asked: the lock keeper still has too many commands that the store has not answered, as in an
    /// outage. Nothing was changed.
    Overloaded,
}

impl StoreError {
    /// Not reached, or it refused.
    pub fn unavailable(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Unavailable, source)
    }

    /// Not reached, and nothing was sent: the command was not applied for certain, so nothing has to be
    /// undone.
    pub fn not_sent(source: impl Into<BoxError>) -> Self {
        Self { was_sent: false, ..Self::unavailable(source) }
    }

    /// The same for a command of which an earlier try was sent, and may have been applied.
    pub fn but_sent_before(self) -> Self {
        Self { was_sent: true, ..self }
    }

    pub(crate) fn overloaded(source: impl Into<BoxError>) -> Self {
        Self { was_sent: false, ..Self::new(StoreErrorKind::Overloaded, source) }
    }

    /// No answer in time.
    pub fn timeout(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Timeout, source)
    }

    /// What is no answer, or no entry.
    pub fn unreadable(source: impl Into<BoxError>) -> Self {
        Self::new(StoreErrorKind::Unreadable, source)
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the command may have been sent, and so may have been applied.
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
            StoreErrorKind::Unreadable => "the store holds or answered what cannot be read",
            StoreErrorKind::Overloaded => "the store was not asked",
        })
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
