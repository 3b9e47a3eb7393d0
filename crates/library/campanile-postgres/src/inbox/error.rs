//! The errors between the handler and the commit.

use std::error::Error as StdError;
use std::fmt;

use campanile_core::error::{NotRun, find};
use campanile_core::{BoxError, Classify, Disposition};
use tokio_postgres::Error;

/// The reason why the inbox rolled back a handler's writes.
///
/// It is the source of the layer's [`AttemptFailed`](campanile_idempotency::AttemptFailed). If the handler itself
/// fails, the source is the handler's error instead.
#[derive(Debug)]
#[non_exhaustive]
pub enum InboxError {
    /// No run could commit its transaction: each one conflicted with another transaction or lost
    /// its connection. That is not the record's fault, so its attempt is handed back.
    RolledBack {
        /// The number of times that the handler ran.
        runs: u32,
        /// Why the last run was not committed.
        source: BoxError,
    },
    /// The handler ended the transaction itself, with `COMMIT` or `ROLLBACK` (`RESET ALL` has the
    /// same effect). What it committed **stays**, which is the one exception to the inbox's
    /// guarantee. The handler is therefore not run again: the record is given up, as if no further
    /// attempt could succeed ([`Disposition::DeadLetter`]).
    EndedByHandler,
    /// The handler returned while a statement of its transaction was still running, or while its
    /// [`Connection`](super::Connection) was still held.
    TransactionInUse,
    /// An earlier run of this attempt was considered lost, but was committed after all, or may have
    /// been. The next delivery is answered as its duplicate.
    CommittedBefore,
    /// The database refused to commit: a deferred constraint was violated, or an earlier statement
    /// failed and the handler ignored its error.
    NotCommitted(Error),
}

impl fmt::Display for InboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RolledBack { runs, source } if source.is::<NotRun>() => {
                write!(f, "no connection available in the last of {runs} attempts")
            }
            Self::RolledBack { runs, .. } => {
                write!(f, "the transaction was rolled back in each of {runs} runs")
            }
            Self::EndedByHandler => f.write_str(
                "the handler ended the transaction itself, by COMMIT, ROLLBACK or RESET ALL",
            ),
            Self::TransactionInUse => f.write_str(
                "the handler returned while a statement of its transaction was running or its \
                 `Connection` was held",
            ),
            Self::CommittedBefore => {
                f.write_str("an earlier run of the handler was, or may have been, committed")
            }
            Self::NotCommitted(_) => f.write_str("the transaction was not committed"),
        }
    }
}

impl StdError for InboxError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::RolledBack { source, .. } => Some(&**source),
            Self::NotCommitted(error) => Some(error),
            Self::EndedByHandler | Self::TransactionInUse | Self::CommittedBefore => None,
        }
    }
}

/// Hands back the attempt if the error is not the record's fault, and gives up a record that must
/// not run again.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboxClassifier;

impl Classify for InboxClassifier {
    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Disposition> {
        match find(error)? {
            InboxError::RolledBack { .. } | InboxError::CommittedBefore => {
                Some(Disposition::Release)
            }
            // Each further run would commit again.
            InboxError::EndedByHandler => Some(Disposition::DeadLetter),
            _ => None,
        }
    }
}
