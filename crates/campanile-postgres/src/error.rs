//! Why a store could not be had.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_core::error::{find, sources};
use campanile_sql::VERSION;
use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use crate::failure::explained;
use crate::tls::is_refusal;

/// Why [`PgStore::connect`](crate::PgStore::connect) or [`migrate`](crate::migrate()) failed. It shows the
/// address that was tried, and never the password.
///
/// `Debug` prints the error with its sources, since that is what a `main` that returns it shows.
#[non_exhaustive]
pub enum ConnectError {
    /// The URL cannot be used.
    Url {
        /// What is wrong with it.
        source: BoxError,
    },
    /// A certificate or a key of ours cannot be read, or does not fit the other.
    Certificate {
        /// What is wrong with it.
        source: BoxError,
    },
    /// The server, or we to it, could not be shown to be who it should be: another authority has
    /// signed its certificate, it has another name, or it does not take a certificate of ours.
    Untrusted {
        /// Where the server is.
        address: Box<str>,
        /// What is wrong with the certificate.
        source: BoxError,
    },
    /// What is there is not what was asked for: no Postgres, or not this database. A server that is
    /// only not up yet is waited for, and then [`TimedOut`](Self::TimedOut).
    Unreachable {
        /// Where it was looked for.
        address: Box<str>,
        /// What the operating system or the server said.
        source: BoxError,
    },
    /// The server was not there, did not answer, or took no writes in time.
    TimedOut {
        /// Where it was looked for.
        address: Box<str>,
        /// The time that it had.
        after: Duration,
        /// Why the last try failed. None: it was not answered.
        source: Option<BoxError>,
    },
    /// The server refused the user or the password, or the user may not do what has to be done.
    Denied {
        /// Where the server is.
        address: Box<str>,
        /// What it said.
        source: BoxError,
    },
    /// The schema is not there, or is another version's.
    Schema {
        /// Where the server is.
        address: Box<str>,
        /// The version that is there. None: there is no schema.
        found: Option<i32>,
    },
    /// A step of [`migrate`](crate::migrate()) failed, and nothing of it was done.
    Migration {
        /// Where the server is.
        address: Box<str>,
        /// The version that it was to lead to.
        version: i32,
        /// What the server said.
        source: BoxError,
    },
}

impl ConnectError {
    /// What the library says of an option quotes it, which may be a part of a password with a space.
    pub(crate) fn url(error: tokio_postgres::Error) -> Self {
        const TLS: &str = "`sslmode` is `disable`, `prefer` or `require`, and certificates are given by \
            `PgConfig::with_ca` and `PgConfig::with_client_certificate` (feature `tls`, of the crate \
            `campanile` `postgres-tls`); the server's is verified in any case";
        const OTHER: &str = "it is not of the form postgres://[user[:password]@]host[:port][/database], or \
            an option is unknown or its value cannot be read; in `key=value` pairs, a value with a space \
            stands in single quotes";
        let said = find_text(&error);
        let of_tls = ["`sslmode`", "`sslrootcert`", "`sslcert`", "`sslkey`"];
        let is_of_tls = of_tls.iter().any(|name| said.contains(name));
        Self::Url { source: if is_of_tls { TLS } else { OTHER }.into() }
    }

    /// Of a server that answered, or cannot be reached.
    pub(crate) fn of(error: PoolError, address: &str) -> Self {
        match error {
            PoolError::Backend(error) => Self::said(error, address),
            error => Self::Unreachable { address: address.into(), source: error.into() },
        }
    }

    pub(crate) fn said(error: tokio_postgres::Error, address: &str) -> Self {
        if is_refusal(&error) {
            return Self::Untrusted { address: address.into(), source: error.into() };
        }
        let is_denied = error.code().is_some_and(|state| {
            // Invalid authorization.
            state.code().starts_with("28") || *state == SqlState::INSUFFICIENT_PRIVILEGE
        });
        let (address, source) = (address.into(), explained(error));
        if is_denied {
            Self::Denied { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }
}

fn find_text(error: &(dyn Error + 'static)) -> String {
    sources(error).map(ToString::to_string).collect()
}

/// Whether it is worth waiting: the server may only not be up yet, or no server may take writes yet.
pub(crate) fn may_pass(error: &PoolError) -> bool {
    let PoolError::Backend(error) = error else {
        return true;
    };
    match error.code() {
        Some(state) => {
            [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS].contains(state)
        }
        // What the library says itself names its cause, unless it is one of configuration.
        None => {
            (find::<std::io::Error>(error).is_some() || error.is_closed()) && !is_refusal(error)
        }
    }
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIGRATE: &str =
            "run `campanile_postgres::migrate`, or the SQL files of `campanile-sql`";
        match self {
            Self::Url { .. } => f.write_str("the URL of Postgres cannot be used"),
            Self::Certificate { .. } => f.write_str("the certificates cannot be used"),
            Self::Untrusted { address, .. } => {
                write!(
                    f,
                    "Postgres at {address} cannot be trusted, or does not trust us; an authority that \
                     the system does not know is given by PgConfig::with_ca"
                )
            }
            Self::Unreachable { address, .. } => {
                write!(f, "Postgres at {address} cannot be reached")
            }
            Self::TimedOut { address, after, source: None } => {
                write!(f, "Postgres at {address} did not answer within {after:?}")
            }
            Self::TimedOut { address, after, source: Some(_) } => write!(
                f,
                "Postgres at {address} was not up, or took no writes, within {after:?}; start it, correct \
                 its address, or wait longer (PgConfig::with_connect_timeout)"
            ),
            Self::Denied { address, .. } => write!(f, "Postgres at {address} denies access"),
            Self::Schema { address, found: None } => {
                write!(f, "Postgres at {address} has no schema of Campanile; {MIGRATE}")
            }
            Self::Schema { address, found: Some(found) } if *found < VERSION => write!(
                f,
                "the schema of Campanile in Postgres at {address} is of version {found}, and this is \
                 for {VERSION}; {MIGRATE}"
            ),
            Self::Schema { address, found: Some(found) } => write!(
                f,
                "the schema of Campanile in Postgres at {address} is of version {found}, and this is \
                 for {VERSION}; use a release that is for that"
            ),
            Self::Migration { address, version, .. } => {
                write!(f, "Postgres at {address} was not migrated to version {version}")
            }
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Url { source }
            | Self::Certificate { source }
            | Self::Untrusted { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Denied { source, .. }
            | Self::Migration { source, .. } => Some(&**source),
            Self::TimedOut { source, .. } => source.as_ref().map(|source| &**source as _),
            Self::Schema { .. } => None,
        }
    }
}
