//! The errors of a whole batch.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;

/// The reason why every request of a batch failed. The error of a single request is returned
/// unchanged, without this wrapper.
///
/// For the idempotency layer, this is the handler's error: the attempt of each record counts as
/// failed. It is classified by its source, like any other error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BatchError {
    /// The service failed with this error.
    Failed(Arc<dyn Error + Send + Sync>),
    /// The service panicked.
    Panicked,
    /// The service did not return one result per request, so results cannot be assigned to
    /// requests.
    WrongNumber {
        /// The number of requests in the batch.
        requests: usize,
        /// The number of results returned.
        results: usize,
    },
    /// The service will never be ready again. Contains its error, unless it panicked or the runtime of
    /// the first call has ended.
    Closed(Option<Arc<dyn Error + Send + Sync>>),
    /// The batch was dropped before it completed, for example with its runtime.
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
            Self::Panicked => f.write_str("the service panicked while processing the batch"),
            Self::WrongNumber { requests, results } => {
                write!(
                    f,
                    "the service returned {results} results for a batch of {requests} requests"
                )
            }
            Self::Closed(_) => f.write_str("the batch service is closed"),
            Self::Interrupted => f.write_str("the batch was dropped before it completed"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_happened_and_not_its_source() {
        let busy = BatchError::failed("database busy");
        assert_eq!(busy.to_string(), "the batch failed");
        assert_eq!(busy.source().unwrap().to_string(), "database busy");
        let wrong = BatchError::WrongNumber { requests: 3, results: 2 };
        assert_eq!(wrong.to_string(), "the service returned 2 results for a batch of 3 requests");
        assert!(wrong.source().is_none());
    }
}
