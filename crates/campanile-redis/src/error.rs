//! Why a store could not be had.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::{BoxError, error};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::Finding;
use crate::topology::NoPrimary;

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
    /// What is there is no Redis of the kind that was asked for. One that is only not up yet is
    /// waited for, and then [`TimedOut`](Self::TimedOut).
    Unreachable {
        /// Where it was looked for.
        address: Box<str>,
        /// What the operating system or the server said.
        source: BoxError,
    },
    /// The server, or we to it, could not be shown to be who it should be: another authority has
    /// signed its certificate, it has another name, or it wants a certificate of ours.
    Untrusted {
        /// Where the server is.
        address: Box<str>,
        /// What is wrong with the certificate.
        source: BoxError,
    },
    /// The server was not there, or did not answer, in time.
    TimedOut {
        /// Where it was looked for.
        address: Box<str>,
        /// The time that it had.
        after: Duration,
        /// Why the last try failed. None: it was not answered.
        source: Option<BoxError>,
    },
    /// The server refused the user or the password.
    Denied {
        /// Where the server is.
        address: Box<str>,
        /// What it said.
        source: BoxError,
    },
    /// The protocol would not hold on the server. [`Safety::Warn`](crate::Safety::Warn) accepts it.
    Unsafe {
        /// Where the server is.
        address: Box<str>,
        /// Why; at least one, each of which [breaks](crate::Severity::Breaks) the protocol.
        findings: Box<[Finding]>,
    },
}

impl ConnectError {
    pub(crate) fn url(source: RedisError) -> Self {
        Self::Url { source: source.into() }
    }

    pub(crate) fn of(source: impl Into<BoxError>, address: &str) -> Self {
        let (address, source) = (address.into(), source.into());
        let cause: Option<&RedisError> = error::find(&*source);
        let is_denied = |error: &RedisError| {
            error.kind() == ErrorKind::AuthenticationFailed
                || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        };
        if cause.is_some_and(is_denied) {
            Self::Denied { address, source }
        } else if cause.is_some_and(crate::tls::is_refusal) {
            Self::Untrusted { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }
}

/// Whether it is worth waiting: the server may only not be up yet.
pub(crate) fn may_pass(error: &(dyn Error + 'static)) -> bool {
    if let Some(none) = error::find::<NoPrimary>(error) {
        return none.may_pass();
    }
    // What the library did not say is that nothing was answered, or not yet as it will be.
    error::find::<RedisError>(error).is_none_or(|error| match error.kind() {
        ErrorKind::Io => !crate::tls::is_refusal(error),
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
            Self::Url { .. } => f.write_str(
                "the URL of Redis is not of the form redis[s]://[user:password@]host[:port][/db]",
            ),
            Self::Unreachable { address, .. } => write!(f, "Redis at {address} cannot be reached"),
            Self::Untrusted { address, .. } => {
                write!(f, "Redis at {address} cannot be trusted, or does not trust us")
            }
            Self::TimedOut { address, after, source: None } => {
                write!(f, "Redis at {address} did not answer within {after:?}")
            }
            Self::TimedOut { address, after, source: Some(_) } => write!(
                f,
                "Redis at {address} was not up within {after:?}; start it, correct its address, or \
                 wait longer (RedisConfig::with_connect_timeout)"
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
            Self::Url { source }
            | Self::Unreachable { source, .. }
            | Self::Untrusted { source, .. }
            | Self::Denied { source, .. } => Some(&**source),
            Self::TimedOut { source, .. } => source.as_ref().map(|source| &**source as _),
            Self::Unsafe { .. } => None,
        }
    }
}
