//! Why a store could not be had.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::BoxError;
use redis::{ErrorKind, RedisError};

/// Why [`RedisStore::connect`](crate::RedisStore::connect) failed. It shows the address that was
/// tried, and never the credentials.
///
/// `Debug` prints the error with its source, since that is what a `main` that returns it shows.
#[non_exhaustive]
pub enum ConnectError {
    /// The URL cannot be used.
    Url {
        /// What is wrong with it.
        source: BoxError,
    },
    /// The server was not reached, or the connection broke.
    Unreachable {
        /// Where it was looked for.
        address: Box<str>,
        /// What the operating system or the server said.
        source: BoxError,
    },
    /// The server was not there, or did not answer, in time.
    TimedOut {
        /// Where it was looked for.
        address: Box<str>,
        /// The time that it had.
        after: Duration,
    },
    /// The server refused the user or the password, or forbids the user what is needed.
    Denied {
        /// Where the server is.
        address: Box<str>,
        /// What it said.
        source: BoxError,
    },
    /// The server is none that the scripts run on.
    Unsupported {
        /// Where the server is.
        address: Box<str>,
        /// What it is, and what is needed.
        reason: Box<str>,
    },
    /// The server evicts keys when its memory is full: locks and completions would vanish silently.
    Evicts {
        /// Where the server is.
        address: Box<str>,
        /// Its `maxmemory-policy`.
        policy: Box<str>,
    },
}

impl ConnectError {
    pub(crate) fn url(source: RedisError) -> Self {
        Self::Url { source: source.into() }
    }

    pub(crate) fn of(source: RedisError, address: &str) -> Self {
        let address = address.into();
        let is_denied = source.kind() == ErrorKind::AuthenticationFailed
            || matches!(source.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        let source = source.into();
        if is_denied {
            Self::Denied { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match self.source() {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { .. } => f.write_str(
                "the URL of Redis is not of the form redis://[user:password@]host[:port][/db]",
            ),
            Self::Unreachable { address, .. } => write!(f, "Redis at {address} cannot be reached"),
            Self::TimedOut { address, after } => {
                write!(f, "Redis at {address} did not answer within {after:?}")
            }
            Self::Denied { address, .. } => write!(f, "Redis at {address} denies access"),
            Self::Unsupported { address, reason } => write!(f, "Redis at {address}: {reason}"),
            Self::Evicts { address, policy } => write!(
                f,
                "Redis at {address} evicts keys when its memory is full (maxmemory-policy \
                 {policy}): locks and completions would vanish silently; set it to noeviction, or \
                 accept that with `with_lossy_eviction`"
            ),
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Url { source }
            | Self::Unreachable { source, .. }
            | Self::Denied { source, .. } => Some(&**source),
            Self::TimedOut { .. } | Self::Unsupported { .. } | Self::Evicts { .. } => None,
        }
    }
}
