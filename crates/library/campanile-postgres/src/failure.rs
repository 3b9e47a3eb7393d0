//! Why a call failed.

use std::error::Error as StdError;
use std::fmt;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::connect::SESSION_POOLING_ADVICE;
use crate::hosts::FOREIGN_SESSION;

/// The reason why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the server or of the connection.
    Server(Error),
    /// The answer is not one that the schema's functions can give.
    Unexpected(&'static str),
}

impl Failure {
    /// Whether another connection may get an answer: this connection broke, its server is shutting
    /// down or has become a replica, or the transaction conflicted with another. Every command can
    /// be repeated.
    pub(crate) fn is_transient(&self) -> bool {
        let Self::Server(error) = self else {
            return false;
        };
        let Some(state) = error.code() else {
            return true;
        };
        ends_session(error)
            || [
                SqlState::READ_ONLY_SQL_TRANSACTION,
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                // The plan was cached before a migration.
                SqlState::FEATURE_NOT_SUPPORTED,
            ]
            .contains(state)
    }

    /// Whether the call waited too long for a row that another session has locked. The call has
    /// then changed nothing.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Server(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }
}

/// Whether the server ended the session with this error.
pub(crate) fn ends_session(error: &Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unexpected(message) => Self::unreadable(message),
            Failure::Server(error)
                if [Some(&SqlState::QUERY_CANCELED), Some(&SqlState::LOCK_NOT_AVAILABLE)]
                    .contains(&error.code()) =>
            {
                Self::timeout(error)
            }
            Failure::Server(error) => Self::unavailable(with_advice(error)),
        }
    }
}

/// Adds advice to an error, if there is any for it.
pub(crate) fn with_advice(error: Error) -> BoxError {
    const SCHEMA: &str = "the Campanile schema is missing or has another version; run \
        `campanile_postgres::migrate`, or the SQL files of `campanile-sql`";
    const GRANTS: &str = "the user may not use the Campanile schema; run `GRANT USAGE ON SCHEMA \
        campanile` and `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile` for it, again after each \
        migration; an inbox handler that changes its role must end with `RESET ROLE`";
    const READ_ONLY: &str = "the server is a replica or read-only; name all servers in the URL, so \
        that the store finds the one that accepts writes";
    const POOLING: &str = "a prepared statement belongs to another connection: the pooler must use session \
        pooling, such as `pool_mode = session` of PgBouncer";
    let Some(state) = error.code() else {
        return error.into();
    };
    let advice = if state.code() == FOREIGN_SESSION {
        SESSION_POOLING_ADVICE
    } else if [
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
    ]
    .contains(state)
    {
        SCHEMA
    } else if *state == SqlState::INSUFFICIENT_PRIVILEGE {
        GRANTS
    } else if *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        READ_ONLY
    } else if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(state)
    {
        POOLING
    } else {
        return error.into();
    };
    WithAdvice { advice, error }.into()
}

/// An error with advice on how to fix it.
#[derive(Debug)]
pub(crate) struct WithAdvice {
    pub(crate) advice: &'static str,
    pub(crate) error: Error,
}

impl fmt::Display for WithAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice)
    }
}

impl StdError for WithAdvice {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}
