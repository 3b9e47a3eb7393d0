//! The error of all operations.

use std::error::Error;
use std::fmt;

use campanile_core::{BoxError, ConfigError, error};
use campanile_idempotency::{StoreError, StoreErrorKind};

/// Why an operation could not be started, or ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminError {
    /// A setting or an argument is wrong. Nothing was changed.
    Config(ConfigError),
    /// A server could not be reached, or refused a request.
    Unavailable {
        /// What was attempted. Contains no credentials.
        action: Box<str>,
        /// The error of the client or of the server.
        source: BoxError,
    },
}

impl AdminError {
    pub(crate) fn unavailable(action: impl Into<Box<str>>, source: impl Into<BoxError>) -> Self {
        Self::Unavailable { action: action.into(), source: source.into() }
    }

    /// Creates the error of a call to the store. A configuration that contradicts the store's data is
    /// for the operator to correct.
    pub(crate) fn store(action: impl Into<Box<str>>, store_error: StoreError) -> Self {
        if store_error.kind() == StoreErrorKind::Misconfigured {
            return ConfigError::new(chain(&store_error)).into();
        }
        Self::unavailable(action, store_error)
    }
}

/// Joins the texts of an error and its sources.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    error::sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl From<ConfigError> for AdminError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Unavailable { action, .. } => f.write_str(action),
        }
    }
}

impl Error for AdminError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(_) => None,
            Self::Unavailable { source, .. } => Some(&**source),
        }
    }
}
