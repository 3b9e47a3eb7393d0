//! The errors of connecting a store.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::{BoxError, ConfigError, error};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::Finding;
use crate::topology::NoPrimary;

/// The error returned by [`RedisStore::connect`](crate::RedisStore::connect). It shows the address
/// that was tried and never the credentials.
///
/// `Debug` prints the error with its source, because `main` shows a returned error that way.
#[non_exhaustive]
pub enum ConnectError {
    /// A setting is out of its bounds.
    Config(ConfigError),
    /// The URL is invalid.
    Url {
        /// What is wrong with the URL.
        source: BoxError,
    },
    /// The address does not lead to a Redis server of the kind that was asked for. A server that is
    /// only not up yet is waited for, and fails as [`TimedOut`](Self::TimedOut).
    Unreachable {
        /// The address that was tried.
        address: Box<str>,
        /// The error of the operating system or the server.
        source: BoxError,
    },
    /// The TLS handshake failed: the server's certificate is signed by another authority or is for
    /// another name, or the server requires a client certificate.
    Tls {
        /// The address of the server.
        address: Box<str>,
        /// What is wrong with the certificate.
        source: BoxError,
    },
    /// The server was not up, or did not answer, in time.
    TimedOut {
        /// The address that was tried.
        address: Box<str>,
        /// The connect timeout.
        after: Duration,
        /// Why the last answered attempt failed. `None` if no attempt was answered.
        source: Option<BoxError>,
    },
    /// The server rejected the user or the password.
    Denied {
        /// The address of the server.
        address: Box<str>,
        /// The error of the server.
        source: BoxError,
    },
    /// The protocol does not hold on this server. [`Safety::Warn`](crate::Safety::Warn) accepts it.
    Unsafe {
        /// The address of the server.
        address: Box<str>,
        /// The reasons. At least one, each of which [breaks](crate::Severity::Unsafe) the protocol.
        findings: Box<[Finding]>,
    },
}

impl ConnectError {
    pub(crate) fn url(source: RedisError) -> Self {
        Self::Url { source: source.into() }
    }

    pub(crate) fn classify(source: impl Into<BoxError>, address: &str) -> Self {
        let (address, source) = (address.into(), source.into());
        let cause: Option<&RedisError> = error::find(&*source);
        let is_denied = |error: &RedisError| {
            error.kind() == ErrorKind::AuthenticationFailed
                || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        };
        if cause.is_some_and(is_denied) {
            Self::Denied { address, source }
        } else if cause.is_some_and(crate::tls::is_handshake_failure) {
            Self::Tls { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }
}

/// Checks whether a retry may succeed, because the server may only be starting.
pub(crate) fn is_transient(error: &(dyn Error + 'static)) -> bool {
    if let Some(none) = error::find::<NoPrimary>(error) {
        return none.is_transient();
    }
    // Without an error of the library, a server did not answer, or does not have its role yet.
    error::find::<RedisError>(error).is_none_or(|error| match error.kind() {
        ErrorKind::Io => !crate::tls::is_handshake_failure(error),
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
        ),
        _ => false,
    })
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
            Self::Config(error) => error.fmt(f),
            Self::Url { .. } => f.write_str(
                "invalid Redis URL; expected redis[s]://[user:password@]host[:port][/db]",
            ),
            Self::Unreachable { address, .. } => write!(f, "Redis at {address} cannot be reached"),
            Self::Tls { address, .. } => {
                write!(f, "TLS handshake with Redis at {address} failed; check the certificates")
            }
            Self::TimedOut { address, after, source: None } => {
                write!(f, "Redis at {address} did not answer within {after:?}")
            }
            Self::TimedOut { address, after, source: Some(_) } => write!(
                f,
                "Redis at {address} was not available within {after:?}; start it, correct its \
                 address, or wait longer (RedisConfig::with_connect_timeout)"
            ),
            Self::Denied { address, .. } => write!(f, "Redis at {address} denies access"),
            Self::Unsafe { address, findings } => {
                write!(f, "Redis at {address} is not safe to use")?;
                let mut separator = ": ";
                for finding in findings {
                    write!(f, "{separator}{finding}")?;
                    separator = ". Also, ";
                }
                Ok(())
            }
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(_) => None,
            Self::Url { source }
            | Self::Unreachable { source, .. }
            | Self::Tls { source, .. }
            | Self::Denied { source, .. } => Some(&**source),
            Self::TimedOut { source, .. } => source.as_ref().map(|source| &**source as _),
            Self::Unsafe { .. } => None,
        }
    }
}
