//! What fails a whole batch.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;

/// Why each request of a batch has failed, whatever each of them is. A request's own error comes as it
/// is, without this.
///
/// For the idempotency layer it is the handler's error: the attempt of each record counts as failed.
/// What it means is told by its source, as that of any other error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BatchError {
    /// The service failed, with this error.
    Failed(Arc<dyn Error + Send + Sync>),
    /// The service panicked.
    Panicked,
    /// The service has answered, but not with one result for each request; which is whose cannot be
    /// told.
    WrongNumber {
        /// How many requests it got.
        requests: usize,
        /// How many results it gave.
        results: usize,
    },
    /// The service will never be ready again; with its error, unless it panicked.
    Closed(Option<Arc<dyn Error + Send + Sync>>),
    /// The batch was dropped before it had ended, with the runtime say.
    Interrupted,
}

impl BatchError {
    pub(super) fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(error.into().into())
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(_) => f.write_str("the batch failed"),
            Self::Panicked => f.write_str("the service panicked over its batch"),
            Self::WrongNumber { requests, results } => {
                write!(f, "a batch of {requests} requests was answered with {results} results")
            }
            Self::Closed(_) => f.write_str("the service of the batches is not ready any more"),
            Self::Interrupted => f.write_str("the batch was dropped before it had ended"),
        }
    }
}

impl Error for BatchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) | Self::Closed(Some(error)) => Some(&**error),
            _ => None,
        }
    }
}
