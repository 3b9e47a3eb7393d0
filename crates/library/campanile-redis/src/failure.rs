//! Failures of a command.

use std::error::Error;
use std::fmt;

use campanile_idempotency::StoreError;
use redis::{RedisError, ServerError, ServerErrorKind, Value};

/// Why a command failed, and whether another connection or node could answer it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection broke, or leads to a server that has become a replica.
    Connection(RedisError),
    /// The node no longer serves the slot; another node does (`MOVED`).
    Moved(ServerError),
    /// The slot is being moved to another node, which has the key or will create it (`ASK`).
    Ask(ServerError),
    /// As [`Ask`](Self::Ask), but the keys are split between the two nodes, so each must be sent on
    /// its own (`TRYAGAIN`).
    TryAgain(ServerError),
    /// The whole cluster, or this slot, is not served (`CLUSTERDOWN`).
    ClusterDown(ServerError),
    /// Every connection would return the same error.
    Final(StoreError),
}

impl Failure {
    /// Classifies an error reply of the server.
    pub(crate) fn classify(error: ServerError) -> Self {
        match error.kind() {
            Some(ServerErrorKind::ReadOnly) => Self::Connection(error.into()),
            Some(ServerErrorKind::Moved) => Self::Moved(error),
            Some(ServerErrorKind::Ask) => Self::Ask(error),
            Some(ServerErrorKind::TryAgain) => Self::TryAgain(error),
            Some(ServerErrorKind::ClusterDown) => Self::ClusterDown(error),
            // The command was blocked while the server became a replica.
            _ if error.code() == "UNBLOCKED" => Self::Connection(error.into()),
            _ if error.code() == "OOM" => Self::Final(out_of_memory()),
            _ => Self::Final(StoreError::unavailable(RedisError::from(error))),
        }
    }

    /// A reply that is not of the expected form.
    pub(crate) fn unexpected(what: &'static str) -> Self {
        Self::Final(StoreError::unreadable(what))
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connection(error) => Self::unavailable(error),
            Failure::Moved(error)
            | Failure::Ask(error)
            | Failure::TryAgain(error)
            | Failure::ClusterDown(error) => Self::unavailable(RedisError::from(error)),
            Failure::Final(error) => error,
        }
    }
}

/// Converts an error reply into a failure.
pub(crate) fn check_reply(reply: Result<Value, RedisError>) -> Result<Value, Failure> {
    match reply {
        Ok(Value::ServerError(error)) => Err(Failure::classify(error)),
        Ok(value) => Ok(value),
        Err(error) => Err(Failure::Connection(error)),
    }
}

/// The error for a write that was refused because Redis is out of memory.
pub(crate) fn out_of_memory() -> StoreError {
    StoreError::unavailable(OutOfMemory)
}

#[derive(Debug)]
struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Redis is out of memory (OOM) and grants no new locks; raise maxmemory, or delete old \
             entries with `campanile purge` (locks already held are still renewed and settled, and \
             duplicates are still answered)",
        )
    }
}

impl Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of failure that a server's error reply is.
    fn kind(reply: &str) -> &'static str {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes());
        match check_reply(reply) {
            Ok(value) => panic!("{value:?} is no error"),
            Err(Failure::Connection(_)) => "connection",
            Err(Failure::Moved(_)) => "moved",
            Err(Failure::Ask(_)) => "ask",
            Err(Failure::TryAgain(_)) => "try again",
            Err(Failure::ClusterDown(_)) => "cluster down",
            Err(Failure::Final(error)) if format!("{error:?}").contains("OutOfMemory") => {
                "out of memory"
            }
            Err(Failure::Final(_)) => "final",
        }
    }

    #[test]
    fn error_reply_is_classified_by_its_code() {
        for (reply, expected) in [
            ("READONLY You can't write against a read only replica.", "connection"),
            ("UNBLOCKED force unblock from blocking operation", "connection"),
            ("MOVED 3999 127.0.0.1:6381", "moved"),
            ("ASK 3999 127.0.0.1:6381", "ask"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "try again"),
            ("CLUSTERDOWN The cluster is down", "cluster down"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "out of memory"),
            ("NOPERM this user has no permissions", "final"),
            ("ERR unknown", "final"),
        ] {
            assert_eq!(kind(reply), expected, "{reply}");
        }
    }
}
