//! One request, from its first BEGIN until its outcome is known.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::error::{NotRun, find, not_run, undone};
use campanile_core::{
    BoxError, BoxableError, CarryLock, Command, Completion, Interrupt, LockHandle, LostCause,
    Operation, Reply, State,
};
use campanile_idempotency::{Backoff, IdempotencyLayer, ReplyCodec, Store, StoreError};
use futures_util::future::{Either, select};
use tokio::time::{sleep, timeout};
use tower_service::Service;

use super::Inbox;
use super::error::InboxError;
use super::open_transaction::{
    NotCommitted, OpenTransaction, RolledBack, is_conflict, is_server_failure, is_stale,
};
use super::transaction::CarryTransaction;
use crate::failure::with_advice;
use crate::outbox::MessageCounter;
use crate::pool::Lease;

/// A longer wait for a connection is logged.
const LOG_AFTER: Duration = Duration::from_secs(1);

/// The pause between two reads of an entry while the outcome of its commit is unknown.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Run<E, C> {
    inbox: Inbox,
    layer: Arc<IdempotencyLayer<E, C>>,
    /// `None` if a policy lets requests through without a lock; then nothing is recorded.
    lock: Option<LockHandle>,
}

/// The reason why a run has no reply.
enum RunError {
    /// The handler may run again.
    Retry(BoxError),
    Failed(BoxError),
}

use RunError::{Failed, Retry};

impl<E, C> Run<E, C> {
    pub(super) fn new(
        inbox: Inbox,
        layer: Arc<IdempotencyLayer<E, C>>,
        lock: Option<LockHandle>,
    ) -> Self {
        Self { inbox, layer, lock }
    }

    /// Runs the handler until its transaction is committed, or until it fails for a reason of its
    /// own.
    pub(super) async fn process<S, R>(
        self,
        mut service: S,
        request: R,
    ) -> Result<S::Response, BoxError>
    where
        R: CarryLock + CarryTransaction + Clone,
        S: Service<R>,
        S::Error: BoxableError,
        C: ReplyCodec<S::Response>,
    {
        let backoff =
            Backoff::new(Duration::from_millis(10), Duration::from_secs(1)).expect("10 ms < 1 s");
        let (mut runs, mut has_run) = (0, false);
        loop {
            let is_first = runs == 0;
            let source = match self.run(&mut service, request.clone(), is_first).await {
                Ok(reply) => return Ok(reply),
                // The handler's earlier run may be why no connection is available.
                Err(Failed(source)) if has_run && source.is::<NotRun>() => {
                    return Err(InboxError::RolledBack { runs, source }.into());
                }
                Err(Failed(error)) => return Err(error),
                Err(Retry(error)) => error,
            };
            runs += 1;
            has_run |= !source.is::<NotRun>();
            if runs > self.inbox.settings.max_reruns {
                let given_up = InboxError::RolledBack { runs, source };
                return Err(if has_run { given_up.into() } else { not_run(given_up).into() });
            }
            tracing::debug!(runs, error = &*source as &dyn StdError, "running the handler again");
            if let Some(lock) = &self.lock {
                lock.restart_steps();
            }
            sleep(backoff.delay(runs)).await;
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
        }
    }

    /// Runs the handler once.
    async fn run<S, R>(
        &self,
        service: &mut S,
        mut request: R,
        is_first: bool,
    ) -> Result<S::Response, RunError>
    where
        R: CarryLock + CarryTransaction,
        S: Service<R>,
        S::Error: BoxableError,
        C: ReplyCodec<S::Response>,
    {
        let transaction = self.open_transaction().await?;
        let key = self.lock.as_ref().map(|lock| lock.store_key().clone());
        let message_counter = Arc::new(MessageCounter::new(key));
        request.set_transaction(transaction.handle(&message_counter));
        let interrupt = request.interrupt();
        // Polled, and thus called, only after BEGIN has been sent.
        let handler = async { service.call(request).await.map_err(Into::<BoxError>::into) };
        let handled = transaction.run_handler(handler).await;
        let reply = match handled.map_err(|error| self.connection_lost(error))? {
            Ok(reply) => reply,
            Err(error) => {
                if find(&*error).is_some_and(is_stale) {
                    // Close this connection; `connection_lost` closes the idle ones, which have the
                    // same stale statements.
                    drop(transaction);
                    return Err(self.connection_lost(error));
                }
                let is_conflict = find(&*error).is_some_and(is_conflict);
                let is_server_failure = find(&*error).is_some_and(is_server_failure);
                return Err(match transaction.roll_back().await {
                    RolledBack::Broken => self.connection_lost(error),
                    RolledBack::EndedByHandler => {
                        let error = &*error as &dyn StdError;
                        tracing::warn!(error, "the handler has ended its transaction and failed");
                        Failed(InboxError::EndedByHandler.into())
                    }
                    RolledBack::Open if is_conflict => Retry(error),
                    RolledBack::Open if is_server_failure => {
                        Failed(undone(StoreError::unavailable(error)).into())
                    }
                    RolledBack::Open => Failed(error),
                });
            }
        };
        let Some(lock) = &self.lock else {
            // Without a lock there is no entry that could show whether the commit took place, so
            // there is nothing to wait for.
            let committed = transaction.commit().await;
            committed.map_err(|error| self.commit_error_without_lock(error))?;
            self.inbox.notify_relay(&message_counter);
            return Ok(reply);
        };
        let record = interrupt.as_ref().map(Interrupt::record);
        let completion = match self.layer.completion(lock, record, &reply) {
            Ok(completion) => completion,
            Err(error) => {
                transaction.roll_back().await;
                return Err(Failed(error));
            }
        };
        let at = self.conclude(transaction, &completion, lock, is_first).await?;
        self.inbox.notify_relay(&message_counter);
        if let Operation::Complete { reply, .. } = completion.operation {
            // `None` means that the keeper has stopped; it will not complete the entry either.
            if let Some(control) = self.layer.control(lock) {
                control.complete(Completion { reply, at });
            }
        }
        Ok(reply)
    }

    /// Commits the transaction together with its entry. Deferred constraints and triggers may take
    /// long: the commit is awaited as long as it holds the entry's row and the lock is alive.
    async fn conclude(
        &self,
        transaction: OpenTransaction,
        completion: &Command,
        lock: &LockHandle,
        is_first: bool,
    ) -> Result<SystemTime, RunError> {
        let mut concluding = pin!(transaction.conclude(completion));
        let concluded = match timeout(self.inbox.config().command_timeout, &mut concluding).await {
            Ok(concluded) => concluded,
            Err(_) => match select(concluding, pin!(self.resolve_commit(lock, is_first))).await {
                Either::Left((concluded, _)) => concluded,
                // Dropping `concluding` closes the connection.
                Either::Right((resolved, _)) => return resolved,
            },
        };
        match concluded {
            Ok(at) => Ok(at),
            Err(NotCommitted::Retry(error)) => Err(Retry(error.into())),
            Err(NotCommitted::Failed(error)) => Err(Failed(error.into())),
            Err(NotCommitted::ServerError(error)) => Err(server_error(error)),
            Err(NotCommitted::Unknown) => self.resolve_commit(lock, is_first).await,
            Err(NotCommitted::GrantLost) => self.resolve_commit(lock, false).await,
        }
    }

    async fn open_transaction(&self) -> Result<OpenTransaction, RunError> {
        let limit = self.inbox.config().command_timeout;
        let lease = self.lease_connection().await?;
        match timeout(limit, OpenTransaction::new(lease, limit)).await {
            Ok(Ok(transaction)) => Ok(transaction),
            Ok(Err(error)) => Err(self.connection_lost(not_run(error).into())),
            Err(_) => Err(Retry(not_run(StoreError::timeout("PREPARE was not answered")).into())),
        }
    }

    async fn lease_connection(&self) -> Result<Lease, RunError> {
        let (pool, wait) = (&self.inbox.settings.pool, self.inbox.settings.max_wait);
        let mut leasing = pin!(pool.lease(wait));
        let mut leased = timeout(wait.min(LOG_AFTER), &mut leasing).await;
        if leased.is_err() && wait > LOG_AFTER {
            self.inbox.log_wait(&pool.timed_out(LOG_AFTER));
            leased = timeout(wait - LOG_AFTER, leasing).await;
        }
        match leased {
            Ok(Ok(lease)) => Ok(lease),
            // The server may be coming back.
            Ok(Err(error)) => {
                self.inbox.log_wait(&error);
                Err(Retry(not_run(error).into()))
            }
            Err(_) => Err(Failed(not_run(pool.timed_out(wait)).into())),
        }
    }

    /// Closes the idle connections after one of them broke. The handler may run again.
    fn connection_lost(&self, error: BoxError) -> RunError {
        // The idle connections are as old, and their server may be gone, too.
        self.inbox.settings.pool.close_idle();
        Retry(error)
    }

    /// Finds out whether a transaction was committed if its commit was not answered. Returns when
    /// its entry was completed. Unless this is the only run, an earlier run may have completed the
    /// entry instead.
    ///
    /// A commit that is still running has locked the entry's row, so the renewal used here waits
    /// for it. A commit that arrives even later has no effect: only the transaction that takes the
    /// entry out of PROCESSING is committed.
    async fn resolve_commit(
        &self,
        lock: &LockHandle,
        is_only: bool,
    ) -> Result<SystemTime, RunError> {
        let store = &self.inbox.settings.store;
        loop {
            if let Ok(answer) = store.apply(self.layer.renewal(lock)).await {
                match answer.reply {
                    // The reply does not contain the time of completion, which was shortly before
                    // `now`.
                    Reply::Settled(State::Completed) if is_only => return Ok(answer.now),
                    // This run's reply may describe an effect that was rolled back; the entry has
                    // the reply of the other run.
                    Reply::Settled(State::Completed) => {
                        return Err(Failed(undone(InboxError::CommittedBefore).into()));
                    }
                    Reply::Renewed => {
                        let error = "the commit was not answered and did not take place";
                        return Err(Retry(error.into()));
                    }
                    Reply::Lost | Reply::Settled(_) => {
                        if let Some(control) = self.layer.control(lock) {
                            control.lose(LostCause::Superseded);
                        }
                    }
                    _ => {}
                }
            }
            if let Err(lost) = lock.check() {
                return Err(Failed(lost.into()));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn commit_error_without_lock(&self, error: NotCommitted) -> RunError {
        match error {
            NotCommitted::Retry(error) => Retry(error.into()),
            NotCommitted::Failed(error) => Failed(error.into()),
            NotCommitted::ServerError(error) => server_error(error),
            NotCommitted::GrantLost | NotCommitted::Unknown => {
                Failed("unknown whether the transaction was committed".into())
            }
        }
    }
}

/// Converts an error of a server that could not commit, with advice, as for the store's own calls.
fn server_error(error: tokio_postgres::Error) -> RunError {
    Failed(undone(StoreError::unavailable(with_advice(error))).into())
}
