//! An open transaction, from BEGIN to its end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{BoxError, Command, Operation};
use campanile_idempotency::StoreError;
use futures_util::future::{join, try_join};
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{Error, Statement};

use super::error::InboxError;
use super::isolation::Isolation;
use super::transaction::Transaction;
use crate::call::retention_micros;
use crate::outbox::Outgoing;
use crate::pool::Lease;

/// A connection with its transaction. Dropped, it is closed, which rolls back.
pub(super) struct Open {
    lease: Arc<Lease>,
    conclude: Statement,
    limit: Duration,
}

/// Why a transaction was not committed, as far as that is known.
pub(super) enum NotCommitted {
    /// It met another, or broke before it could be committed: it may be run again.
    Again(Error),
    /// The entry is not this grant's to complete; or this grant has completed it before.
    Over,
    /// No answer came: it may have been committed.
    Unknown,
    /// It never will be.
    Failed(InboxError),
    /// The server could not do it, which says nothing about the handler.
    Unable(Error),
}

const CONCLUDE: &str = "SELECT campanile.conclude($1, $2, $3, $4, $5, $6)";
const STILL_OPEN: &str = "DO $$BEGIN \
    IF current_setting('campanile.inbox', true) IS DISTINCT FROM 'open' THEN \
        RAISE 'the handler has ended the transaction of its inbox' USING ERRCODE = 'CI001'; \
    END IF; END$$";
const ENDED_BY_HANDLER: &str = "CI001";
const OVER: &str = "CI002";

impl Open {
    /// Over this connection; what BEGIN and each end may take is `limit`.
    pub(super) async fn over(lease: Lease, limit: Duration) -> Result<Self, Error> {
        // Prepared once for each connection.
        let conclude = lease.prepare_cached(CONCLUDE).await?;
        Ok(Self { lease: Arc::new(lease), conclude, limit })
    }

    /// Begins the transaction and calls the handler, whose first statement is sent together with BEGIN.
    ///
    /// Should BEGIN fail, the handler is dropped; and what it has sent has changed nothing, for without
    /// BEGIN the connection only reads.
    pub(super) async fn within<T>(
        &self,
        isolation: Isolation,
        handler: impl Future<Output = T>,
    ) -> Result<T, BoxError> {
        let begun = async {
            match timeout(self.limit, self.lease.batch_execute(isolation.begin())).await {
                Ok(begun) => begun.map_err(BoxError::from),
                Err(_) => Err(StoreError::timeout("BEGIN was not answered").into()),
            }
        };
        // The first is polled first, which sends it.
        let ((), ended) = try_join(begun, async { Ok(handler.await) }).await?;
        Ok(ended)
    }

    /// For the handler.
    pub(super) fn handle(&self, outgoing: &Arc<Outgoing>) -> Transaction {
        Transaction::new(&self.lease, outgoing)
    }

    /// Rolls it back, and gives the connection back; closes it where that is not to be had. Says whether
    /// the connection had broken before.
    pub(super) async fn roll_back(self) -> bool {
        let Self { lease, limit, .. } = self;
        let is_closed = lease.is_closed();
        // Somebody may still have it; it is closed when they let it go.
        let Some(lease) = Arc::into_inner(lease) else {
            return is_closed;
        };
        match timeout(limit, lease.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => lease.end(),
            // Nothing else refuses it. The end may come after the error that told of it.
            Ok(Err(_)) => return true,
            Err(_) => {}
        }
        false
    }

    /// Commits it alone.
    pub(super) async fn commit(self) -> Result<(), NotCommitted> {
        let Self { lease, limit, .. } = self;
        let lease = Arc::into_inner(lease).ok_or(IN_USE)?;
        // Of a transaction that failed before, COMMIT would roll back and say nothing.
        let both = join(lease.batch_execute(STILL_OPEN), lease.batch_execute("COMMIT"));
        let answers = timeout(limit, both).await.map_err(|_| NotCommitted::Unknown)?;
        ended(answers, lease)
    }

    /// Completes the entry in it, and commits it, without a limit; says when it was completed.
    pub(super) async fn conclude(self, completion: &Command) -> Result<SystemTime, NotCommitted> {
        let Self { lease, conclude, .. } = self;
        let lease = Arc::into_inner(lease).ok_or(IN_USE)?;
        let Operation::Complete { grant, reply, .. } = &completion.operation else {
            unreachable!("only a completion concludes");
        };
        let (token, owner) = (grant.token.get().cast_signed(), grant.owner.get().cast_signed());
        let space = completion.key.namespace().as_str();
        let digest = completion.key.digest();
        let key = &digest[..];
        let reply = reply.as_ref().map(Bytes::as_ref);
        let kept = retention_micros(completion.retention.completed);
        let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[&space, &key, &token, &owner, &reply, &kept];
        // Sent together: behind a `conclude` that raises, COMMIT rolls back.
        let concluding = async { lease.query_one(&conclude, parameters).await?.try_get(0) };
        let answers = join(concluding, lease.batch_execute("COMMIT")).await;
        ended(answers, lease)
    }
}

type Answers<T> = (Result<T, Error>, Result<(), Error>);

/// What the statement before COMMIT and that came to.
fn ended<T>(answers: Answers<T>, lease: Lease) -> Result<T, NotCommitted> {
    match answers {
        (Ok(last), Ok(())) => {
            lease.end();
            Ok(last)
        }
        (Ok(_), Err(error)) => Err(of_commit(error)),
        (Err(error), committed) => {
            if committed.is_ok() {
                lease.end();
            }
            Err(of_last(error))
        }
    }
}

const IN_USE: NotCommitted = NotCommitted::Failed(InboxError::InUse);

fn of_last(error: Error) -> NotCommitted {
    match error.code().map(SqlState::code) {
        Some(ENDED_BY_HANDLER) => NotCommitted::Failed(InboxError::EndedByHandler),
        Some(OVER) => NotCommitted::Over,
        // The handler's statements had no such trouble.
        Some("42501" | "42883" | "3F000") => NotCommitted::Unable(error),
        _ => of_commit(error),
    }
}

/// The server says `ERROR` of what it has rolled back. Whatever ends the connection may also have come
/// after the commit, while that waited for a replica.
fn of_commit(error: Error) -> NotCommitted {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    let state = error.code().map_or("", SqlState::code);
    if severity != Some(Severity::Error) {
        NotCommitted::Unknown
    } else if state.starts_with("53") || state.starts_with("58") {
        // No room, or a disk that fails.
        NotCommitted::Unable(error)
    } else if is_conflict(&error) {
        NotCommitted::Again(error)
    } else {
        NotCommitted::Failed(InboxError::NotCommitted(error))
    }
}

/// Whether two transactions met, of which one has to be run again.
pub(super) fn is_conflict(error: &Error) -> bool {
    error.code().is_some_and(|state| {
        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(state)
    })
}

/// Whether the connection has prepared the statement before its table was changed, or does not know it
/// any more: another one prepares it anew.
pub(super) fn is_stale(error: &Error) -> bool {
    let of_plan = |error: &DbError| error.routine() == Some("RevalidateCachedQuery");
    error.as_db_error().is_some_and(of_plan)
        || error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME)
}
