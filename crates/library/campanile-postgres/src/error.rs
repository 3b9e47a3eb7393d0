//! The reasons why a store cannot connect.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::error::{find, sources};
use campanile_core::{BoxError, ConfigError};
use campanile_sql::VERSION;
use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use crate::failure::with_advice;
use crate::tls::is_verification_failure;

/// The error of [`PgStore::connect`](crate::PgStore::connect) and [`migrate`](crate::migrate()). It
/// contains the server's address and never the password.
///
/// `Debug` prints the error with its sources, because that is what a `main` that returns the error
/// prints.
#[non_exhaustive]
pub enum ConnectError {
    /// A setting is out of its bounds.
    Config(ConfigError),
    /// The URL is invalid.
    Url {
        /// What is wrong with the URL.
        source: BoxError,
    },
    /// A certificate or key of the client cannot be read, or the two do not match.
    Certificate {
        /// What is wrong with the certificate or key.
        source: BoxError,
    },
    /// TLS verification failed, of the server or of the client: the server's certificate has
    /// another authority or another name, or the server rejects the client's certificate.
    Tls {
        /// The server's address.
        address: Box<str>,
        /// What is wrong with the certificate.
        source: BoxError,
    },
    /// The address does not lead to the requested service: there is no Postgres, or it does not
    /// have the database. `connect` waits for a server that is merely not up yet, and then fails
    /// with [`TimedOut`](Self::TimedOut).
    Unreachable {
        /// The address that was tried.
        address: Box<str>,
        /// The error of the operating system or the server.
        source: BoxError,
    },
    /// The server was not up, did not answer, or did not accept writes in time.
    TimedOut {
        /// The address that was tried.
        address: Box<str>,
        /// The time limit.
        after: Duration,
        /// The error of the last attempt; `None` if that attempt was not answered.
        source: Option<BoxError>,
    },
    /// The server rejected the user or the password, or the user lacks a permission.
    Denied {
        /// The server's address.
        address: Box<str>,
        /// The server's error.
        source: BoxError,
    },
    /// The schema is missing or has another version.
    Schema {
        /// The server's address.
        address: Box<str>,
        /// The version of the schema; `None` if there is no schema.
        found: Option<i32>,
    },
    /// A step of [`migrate`](crate::migrate()) failed, and nothing of it was applied.
    Migration {
        /// The server's address.
        address: Box<str>,
        /// The version to which the step migrates.
        version: i32,
        /// The server's error.
        source: BoxError,
    },
}

impl ConnectError {
    /// Drops the library's error, because it quotes the option, which may be part of a password
    /// with a space.
    pub(crate) fn invalid_url(error: tokio_postgres::Error) -> Self {
        const TLS: &str = "`sslmode` must be `disable`, `prefer` or `require`; set certificates with \
            `PgConfig::with_ca` and `PgConfig::with_client_certificate` (feature `postgres-tls` of \
            `campanile`, or `tls` of `campanile-postgres`); the server's certificate is always verified";
        const OTHER: &str = "it is not of the form postgres://[user[:password]@]host[:port][/database], or \
            an option is unknown or has an invalid value; in `key=value` pairs, put a value with a space \
            in single quotes";
        let text = full_text(&error);
        let tls_options = ["`sslmode`", "`sslrootcert`", "`sslcert`", "`sslkey`"];
        let is_about_tls = tls_options.iter().any(|name| text.contains(name));
        Self::Url { source: if is_about_tls { TLS } else { OTHER }.into() }
    }

    /// Converts an error of the pool: the server answered with an error, or cannot be reached.
    pub(crate) fn from_pool(error: PoolError, address: &str) -> Self {
        match error {
            PoolError::Backend(error) => Self::from_server(error, address),
            error => Self::Unreachable { address: address.into(), source: error.into() },
        }
    }

    pub(crate) fn from_server(error: tokio_postgres::Error, address: &str) -> Self {
        if is_verification_failure(&error) {
            return Self::Tls { address: address.into(), source: error.into() };
        }
        let is_denied = error.code().is_some_and(|state| {
            // SQLSTATE class 28 is "invalid authorization".
            state.code().starts_with("28") || *state == SqlState::INSUFFICIENT_PRIVILEGE
        });
        let (address, source) = (address.into(), with_advice(error));
        if is_denied {
            Self::Denied { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }
}

fn full_text(error: &(dyn Error + 'static)) -> String {
    sources(error).map(ToString::to_string).collect()
}

/// Whether the error may be transient: the server may not be up yet, or no server may accept writes
/// yet.
pub(crate) fn is_transient(error: &PoolError) -> bool {
    let PoolError::Backend(error) = error else {
        return true;
    };
    match error.code() {
        Some(state) => {
            [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS].contains(state)
        }
        // Errors of the library itself have their cause as a source, except for those of the
        // configuration.
        None => {
            (find::<std::io::Error>(error).is_some() || error.is_closed())
                && !is_verification_failure(error)
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
            Self::Config(error) => error.fmt(f),
            Self::Url { .. } => f.write_str("invalid Postgres URL"),
            Self::Certificate { .. } => f.write_str("invalid certificate or key"),
            Self::Tls { address, .. } => {
                write!(
                    f,
                    "TLS verification failed: Postgres at {address} is not trusted, or does not trust the \
                     client; set an authority that the system does not know with PgConfig::with_ca"
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
                "Postgres at {address} was not up, or did not accept writes, within {after:?}; start it, \
                 correct its address, or wait longer (PgConfig::with_connect_timeout)"
            ),
            Self::Denied { address, .. } => write!(f, "Postgres at {address} denies access"),
            Self::Schema { address, found: None } => {
                write!(f, "Postgres at {address} has no Campanile schema; {MIGRATE}")
            }
            Self::Schema { address, found: Some(found) } if *found < VERSION => write!(
                f,
                "the Campanile schema in Postgres at {address} has version {found}, but this release \
                 requires {VERSION}; {MIGRATE}"
            ),
            Self::Schema { address, found: Some(found) } => write!(
                f,
                "the Campanile schema in Postgres at {address} has version {found}, but this release \
                 requires {VERSION}; use a release for version {found}"
            ),
            Self::Migration { address, version, .. } => {
                write!(f, "failed to migrate Postgres at {address} to version {version}")
            }
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(_) => None,
            Self::Url { source }
            | Self::Certificate { source }
            | Self::Tls { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Denied { source, .. }
            | Self::Migration { source, .. } => Some(&**source),
            Self::TimedOut { source, .. } => source.as_ref().map(|source| &**source as _),
            Self::Schema { .. } => None,
        }
    }
}
