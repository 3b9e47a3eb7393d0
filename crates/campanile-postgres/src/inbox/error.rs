//! What goes wrong between the handler and the commit.

use std::error::Error as StdError;
use std::fmt;

use campanile_core::error::{NotRun, find};
use campanile_core::{BoxError, Classify, Disposition};
use tokio_postgres::Error;

/// Why the inbox has rolled back what a handler wrote.
///
/// It is the source of the layer's [`Failed`](campanile_idempotency::Failed); an error of the handler
/// is that itself.
#[derive(Debug)]
#[non_exhaustive]
pub enum InboxError {
    /// In none of its runs could the transaction be committed: it met others each time, or its connection
    /// broke. It says nothing about the record, whose attempt is handed back.
    GivenUp {
        /// How often the handler ran.
        runs: u32,
        /// Why the last run was not committed.
        source: BoxError,
    },
    /// The handler has ended the transaction itself, by `COMMIT` or `ROLLBACK` (`RESET ALL` looks the same).
    /// What it has committed so **stays**, the one exception to the inbox's promise; so it is not run again:
    /// the record is given up as one that no attempt would mend ([`Disposition::DeadLetter`]).
    EndedByHandler,
    /// The handler has answered while a statement of its transaction was still at work, or its
    /// [`Connection`](super::Connection) in somebody's hand.
    InUse,
    /// An earlier run of this attempt, whose commit was taken for lost, was committed after all, or may have
    /// been. The next delivery is answered as the duplicate of what was.
    CommittedBefore,
    /// The database refused to commit: a constraint that is checked at the end, or a statement that had
    /// failed before, which the handler has passed over.
    NotCommitted(Error),
}

impl fmt::Display for InboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GivenUp { runs, source } if source.is::<NotRun>() => {
                write!(f, "no connection was had in the last of {runs} tries")
            }
            Self::GivenUp { runs, .. } => {
                write!(f, "the transaction was rolled back in each of {runs} runs")
            }
            Self::EndedByHandler => f.write_str(
                "the handler has ended the transaction itself, by COMMIT, ROLLBACK or RESET ALL",
            ),
            Self::InUse => f.write_str(
                "the handler has answered while a statement of its transaction was at work, or its \
                 `Connection` in somebody's hand",
            ),
            Self::CommittedBefore => {
                f.write_str("an earlier run of the handler was, or may have been, committed late")
            }
            Self::NotCommitted(_) => f.write_str("the transaction was not committed"),
        }
    }
}

impl StdError for InboxError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::GivenUp { source, .. } => Some(&**source),
            Self::NotCommitted(error) => Some(error),
            Self::EndedByHandler | Self::InUse | Self::CommittedBefore => None,
        }
    }
}

/// Hands back the attempt of what says nothing about the record, and ends what must not be repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opinion;

impl Classify for Opinion {
    fn classify(&self, error: &(dyn StdError + 'static)) -> Option<Disposition> {
        match find(error)? {
            InboxError::GivenUp { .. } | InboxError::CommittedBefore => Some(Disposition::Release),
            // Each further run would commit again.
            InboxError::EndedByHandler => Some(Disposition::DeadLetter),
            _ => None,
        }
    }
}
