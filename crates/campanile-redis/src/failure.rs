//! Why a command got no answer.

use std::error::Error;
use std::fmt;

use campanile_idempotency::StoreError;
use redis::{RedisError, ServerError, ServerErrorKind, Value};

/// Why a command got no answer, and whether another connection could get one.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection broke, or leads to a server that was demoted to a replica.
    Connection(RedisError),
    /// The node of a cluster serves the slot no more: another does.
    Moved(ServerError),
    /// The slot is on its way to another node, which has the key or will have it.
    Ask(ServerError),
    /// As [`Ask`](Self::Ask), with some of the keys at either node: each is to go its own way.
    Split(ServerError),
    /// The cluster serves nothing, or not this slot.
    Down(ServerError),
    /// Every connection would answer the same.
    Final(StoreError),
}

impl Failure {
    /// What the server's refusal means.
    pub(crate) fn refused(error: ServerError) -> Self {
        match error.kind() {
            Some(ServerErrorKind::ReadOnly) => Self::Connection(error.into()),
            Some(ServerErrorKind::Moved) => Self::Moved(error),
            Some(ServerErrorKind::Ask) => Self::Ask(error),
            Some(ServerErrorKind::TryAgain) => Self::Split(error),
            Some(ServerErrorKind::ClusterDown) => Self::Down(error),
            // It was waiting for something while the server was demoted.
            _ if error.code() == "UNBLOCKED" => Self::Connection(error.into()),
            _ if error.code() == "OOM" => Self::Final(out_of_memory()),
            _ => Self::Final(StoreError::unavailable(RedisError::from(error))),
        }
    }

    /// For a reply that no server of the right kind gives.
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
            | Failure::Split(error)
            | Failure::Down(error) => Self::unavailable(RedisError::from(error)),
            Failure::Final(error) => error,
        }
    }
}

/// The value of a reply, unless that is an error.
pub(crate) fn value(reply: Result<Value, RedisError>) -> Result<Value, Failure> {
    match reply {
        Ok(Value::ServerError(error)) => Err(Failure::refused(error)),
        Ok(value) => Ok(value),
        Err(error) => Err(Failure::Connection(error)),
    }
}

/// A write was refused for want of memory.
pub(crate) fn out_of_memory() -> StoreError {
    StoreError::unavailable(OutOfMemory)
}

#[derive(Debug)]
struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Redis is out of memory (OOM), so no new lock is granted; raise its maxmemory or \
             shorten the retention. Locks that are held are still renewed and settled, and \
             duplicates answered",
        )
    }
}

impl Error for OutOfMemory {}
