//! An open transaction, from BEGIN to its end.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{BoxError, Command, Details, Operation};
use campanile_idempotency::StoreError;
use futures_util::future::{Either, join, select, try_join};
use tokio::time::sleep;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{Error, Statement};

use super::error::InboxError;
use super::transaction::Transaction;
use crate::call::retention_micros;
use crate::outbox::MessageCounter;
use crate::pool::Lease;

/// A connection with its transaction. Dropping it closes the connection, which rolls back the
/// transaction.
pub(super) struct OpenTransaction {
    lease: Arc<Lease>,
    conclude: Statement,
    limit: Duration,
}

/// The reason why a transaction was not committed, as far as it is known.
pub(super) enum NotCommitted {
    /// The transaction conflicted with another, or broke before it could be committed. It may run
    /// again.
    Retry(Error),
    /// The grant no longer holds the entry, or has completed it before.
    GrantLost,
    /// The commit was not answered: the transaction may have been committed.
    Unknown,
    /// The transaction will never be committed.
    Failed(InboxError),
    /// The server was unable to commit, which is not the handler's fault.
    ServerError(Error),
}

/// How a transaction was rolled back.
pub(super) enum RolledBack {
    /// Nothing of it remains.
    Open,
    /// The handler had ended the transaction itself: what it has committed stays.
    EndedByHandler,
    /// The connection was already broken.
    Broken,
}

/// The number of steps in which a time limit passes.
const STEPS: u32 = 8;

/// Takes no snapshot, so that the handler may set another isolation level. The local setting ends with
/// the transaction: if it is missing, the handler has ended the transaction itself.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL campanile.inbox = 'open'";
const CONCLUDE: &str = "SELECT campanile.conclude($1, $2, $3, $4, $5, $6, $7)";
const CHECK_OPEN: &str = "DO $$BEGIN \
    IF current_setting('campanile.inbox', true) IS DISTINCT FROM 'open' THEN \
        RAISE 'the handler has ended the transaction of its inbox' USING ERRCODE = 'CI001'; \
    END IF; END$$";
const ENDED_BY_HANDLER: &str = "CI001";
const GRANT_LOST: &str = "CI002";

impl OpenTransaction {
    /// Uses this connection. `limit` is the time limit of BEGIN and of each way to end the
    /// transaction.
    pub(super) async fn new(lease: Lease, limit: Duration) -> Result<Self, Error> {
        // Each connection prepares it once.
        let conclude = lease.prepare_cached(CONCLUDE).await?;
        Ok(Self { lease: Arc::new(lease), conclude, limit })
    }

    /// Begins the transaction and calls the handler. The handler's first statement is sent together
    /// with BEGIN.
    ///
    /// If BEGIN fails, the handler is dropped. Its statements have changed nothing, because without
    /// BEGIN the connection is read-only.
    pub(super) async fn run_handler<T>(
        &self,
        handler: impl Future<Output = T>,
    ) -> Result<T, BoxError> {
        let begun = async {
            match unblocked_timeout(self.limit, self.lease.batch_execute(BEGIN)).await {
                Some(begun) => begun.map_err(BoxError::from),
                None => Err(StoreError::timeout("BEGIN was not answered in time").into()),
            }
        };
        // `try_join` polls its first future first, which sends BEGIN before any statement of the
        // handler.
        let ((), result) = try_join(begun, async { Ok(handler.await) }).await?;
        Ok(result)
    }

    /// Creates the transaction handle for the handler.
    pub(super) fn handle(&self, message_counter: &Arc<MessageCounter>) -> Transaction {
        Transaction::new(&self.lease, message_counter)
    }

    /// Rolls back the transaction and returns the connection to the pool, or closes the connection
    /// if ROLLBACK fails.
    pub(super) async fn roll_back(self) -> RolledBack {
        let Self { lease, limit, .. } = self;
        let is_closed = lease.is_closed();
        // The lease is still held elsewhere. The connection is closed when it is dropped.
        let Some(lease) = Arc::into_inner(lease) else {
            return if is_closed { RolledBack::Broken } else { RolledBack::Open };
        };
        // If a statement of the transaction has failed, `CHECK_OPEN` fails for that reason, and the
        // transaction was open.
        let statements = join(lease.batch_execute(CHECK_OPEN), lease.batch_execute("ROLLBACK"));
        match unblocked_timeout(limit, statements).await {
            Some((checked, Ok(()))) => {
                lease.release();
                match checked {
                    Err(error) if is_ended_by_handler(&error) => RolledBack::EndedByHandler,
                    _ => RolledBack::Open,
                }
            }
            // Only a broken connection makes ROLLBACK fail. `is_closed` may turn true only after
            // the error that reported it.
            Some((_, Err(_))) => RolledBack::Broken,
            None => RolledBack::Open,
        }
    }

    /// Commits the transaction without completing an entry.
    pub(super) async fn commit(self) -> Result<(), NotCommitted> {
        let Self { lease, limit, .. } = self;
        let lease = Arc::into_inner(lease).ok_or(IN_USE)?;
        // If a statement of the transaction has failed, COMMIT rolls back without an error;
        // `CHECK_OPEN` then returns one.
        let statements = join(lease.batch_execute(CHECK_OPEN), lease.batch_execute("COMMIT"));
        let answers = unblocked_timeout(limit, statements).await.ok_or(NotCommitted::Unknown)?;
        evaluate(answers, lease)
    }

    /// Completes the entry within the transaction and commits it, without a time limit. Returns
    /// when the entry was completed.
    pub(super) async fn conclude(self, completion: &Command) -> Result<SystemTime, NotCommitted> {
        let Self { lease, conclude, .. } = self;
        let lease = Arc::into_inner(lease).ok_or(IN_USE)?;
        let Operation::Complete { grant, reply, details, .. } = &completion.operation else {
            unreachable!("`conclude` takes only completions");
        };
        let (token, owner) = (grant.token.get().cast_signed(), grant.owner.get().cast_signed());
        let namespace = completion.key.namespace().as_str();
        let digest = completion.key.digest();
        let key = &digest[..];
        let reply = reply.as_ref().map(Bytes::as_ref);
        let details = details.as_ref().map(Details::as_bytes);
        let retention = retention_micros(completion.retention.completed);
        let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[&namespace, &key, &token, &owner, &reply, &details, &retention];
        // Sent together: if `conclude` raises an error, the COMMIT after it rolls back.
        let concluding = async { lease.query_one(&conclude, parameters).await?.try_get(0) };
        let answers = join(concluding, lease.batch_execute("COMMIT")).await;
        evaluate(answers, lease)
    }
}

/// Runs this future until it completes or the limit has passed.
///
/// A handler may block the thread on which its connection is served, for longer than the limit. The
/// limit therefore passes in steps, and a blocked thread costs at most one step.
async fn unblocked_timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let limit = pin!(async {
        for _ in 0..STEPS {
            sleep(limit / STEPS).await;
        }
    });
    match select(pin!(future), limit).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

type Answers<T> = (Result<T, Error>, Result<(), Error>);

/// Evaluates the answers to COMMIT and to the statement before it.
fn evaluate<T>(answers: Answers<T>, lease: Lease) -> Result<T, NotCommitted> {
    match answers {
        (Ok(last), Ok(())) => {
            lease.release();
            Ok(last)
        }
        (Ok(_), Err(error)) => Err(classify_commit_error(error)),
        (Err(error), committed) => {
            if committed.is_ok() {
                lease.release();
            }
            Err(classify_last_error(error))
        }
    }
}

const IN_USE: NotCommitted = NotCommitted::Failed(InboxError::TransactionInUse);

fn classify_last_error(error: Error) -> NotCommitted {
    match error.code().map(SqlState::code) {
        _ if is_ended_by_handler(&error) => NotCommitted::Failed(InboxError::EndedByHandler),
        Some(GRANT_LOST) => NotCommitted::GrantLost,
        // An error of the last statement, not of the handler's: `conclude` is missing or the user
        // may not call it.
        Some("42501" | "42883" | "3F000") => NotCommitted::ServerError(error),
        _ => classify_commit_error(error),
    }
}

/// With severity `ERROR` the server has rolled back. An error that ends the connection may also
/// arrive after the commit, while it waits for a replica.
fn classify_commit_error(error: Error) -> NotCommitted {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    if severity != Some(Severity::Error) {
        NotCommitted::Unknown
    } else if is_server_failure(&error) {
        NotCommitted::ServerError(error)
    } else if is_conflict(&error) {
        NotCommitted::Retry(error)
    } else {
        NotCommitted::Failed(InboxError::NotCommitted(error))
    }
}

fn is_ended_by_handler(error: &Error) -> bool {
    error.code().map(SqlState::code) == Some(ENDED_BY_HANDLER)
}

/// Whether the server has insufficient resources, such as a full disk, or a failing disk.
pub(super) fn is_server_failure(error: &Error) -> bool {
    let state = error.code().map_or("", SqlState::code);
    state.starts_with("53") || state.starts_with("58")
}

/// Whether two transactions conflicted and one of them must run again.
pub(super) fn is_conflict(error: &Error) -> bool {
    error.code().is_some_and(|state| {
        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(state)
    })
}

/// Whether the statement was prepared before its table was altered, or the connection no longer
/// knows it. Another connection prepares it anew.
pub(super) fn is_stale(error: &Error) -> bool {
    let is_replan = |error: &DbError| error.routine() == Some("RevalidateCachedQuery");
    error.as_db_error().is_some_and(is_replan)
        || error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME)
}
