//! One request, from its first BEGIN to what the entry says in the end.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::error::{NotRun, find, not_run, undone};
use campanile_core::{
    BoxError, BoxableError, CarryLock, Command, Completion, Interrupt, Lock, LostCause, Operation,
    Reply, State,
};
use campanile_idempotency::{Backoff, IdempotencyLayer, ReplyCodec, Store, StoreError};
use futures_util::future::{Either, select};
use tokio::time::{sleep, timeout};
use tower_service::Service;

use super::Inbox;
use super::error::InboxError;
use super::open::{NotCommitted, Open, is_conflict, is_stale};
use super::transaction::CarryTransaction;
use crate::failure::explained;
use crate::outbox::Outgoing;
use crate::pool::Lease;

/// Who waits longer for a connection is told of.
const NOTICED: Duration = Duration::from_secs(1);

/// Between two looks at an entry whose commit was not answered.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Run<E, C> {
    inbox: Inbox,
    layer: Arc<IdempotencyLayer<E, C>>,
    /// None where a policy lets requests through without one; then nothing is recorded.
    lock: Option<Lock>,
}

/// Why a run has no reply.
enum Ended {
    /// It may be run again.
    Again(BoxError),
    Failed(BoxError),
}

use Ended::{Again, Failed};

impl<E, C> Run<E, C> {
    pub(super) fn new(
        inbox: Inbox,
        layer: Arc<IdempotencyLayer<E, C>>,
        lock: Option<Lock>,
    ) -> Self {
        Self { inbox, layer, lock }
    }

    /// Runs the handler until its transaction is committed, or its failure is its own.
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
            Backoff::new(Duration::from_millis(10), Duration::from_secs(1)).expect("it rises");
        let (mut runs, mut has_run) = (0, false);
        loop {
            let is_first = runs == 0;
            let source = match self.run(&mut service, request.clone(), is_first).await {
                Ok(reply) => return Ok(reply),
                // What it did may be why there is no connection any more.
                Err(Failed(source)) if has_run && source.is::<NotRun>() => {
                    return Err(InboxError::GivenUp { runs, source }.into());
                }
                Err(Failed(error)) => return Err(error),
                Err(Again(error)) => error,
            };
            runs += 1;
            has_run |= !source.is::<NotRun>();
            if runs > self.inbox.max_reruns() {
                let given_up = InboxError::GivenUp { runs, source };
                return Err(if has_run { given_up.into() } else { not_run(given_up).into() });
            }
            tracing::debug!(runs, error = &*source as &dyn StdError, "run in a new transaction");
            sleep(backoff.delay(runs)).await;
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
        }
    }

    /// Runs it once.
    async fn run<S, R>(
        &self,
        service: &mut S,
        mut request: R,
        is_first: bool,
    ) -> Result<S::Response, Ended>
    where
        R: CarryLock + CarryTransaction,
        S: Service<R>,
        S::Error: BoxableError,
        C: ReplyCodec<S::Response>,
    {
        let open = self.open().await?;
        let key = self.lock.as_ref().map(|lock| self.layer.store_key(lock));
        let outgoing = Arc::new(Outgoing::of(key));
        request.set_transaction(open.handle(&outgoing));
        let interrupt = request.interrupt();
        // Called when BEGIN has been sent, and not before.
        let handler = async { service.call(request).await.map_err(Into::<BoxError>::into) };
        let called = open.within(self.inbox.isolation(), handler).await;
        let reply = match called.map_err(|error| self.broken(error))? {
            Ok(reply) => reply,
            Err(error) => {
                if find(&*error).is_some_and(is_stale) {
                    // Closed, as all like it.
                    drop(open);
                    return Err(self.broken(error));
                }
                let is_conflict = find(&*error).is_some_and(is_conflict);
                return Err(match open.roll_back().await {
                    true => self.broken(error),
                    false if is_conflict => Again(error),
                    false => Failed(error),
                });
            }
        };
        let Some(lock) = &self.lock else {
            // There is no entry that could tell, and no record of it, so nothing to wait for.
            let committed = open.commit().await;
            committed.map_err(|not| self.unrecorded(not))?;
            self.inbox.announce(&outgoing);
            return Ok(reply);
        };
        let record = interrupt.as_ref().map(Interrupt::record);
        let completion = match self.layer.completion(lock, record, &reply) {
            Ok(completion) => completion,
            Err(error) => {
                open.roll_back().await;
                return Err(Failed(error));
            }
        };
        let at = self.conclude(open, &completion, lock, is_first).await?;
        self.inbox.announce(&outgoing);
        if let Operation::Complete { reply, .. } = completion.operation {
            // Without it the keeper has stopped, and will not complete the entry either.
            if let Some(control) = self.layer.control(lock) {
                control.complete(Completion { reply, at });
            }
        }
        Ok(reply)
    }

    /// Commits it with its entry. What is deferred until then may take long: as long as it holds the entry's
    /// row, and the lock lives, it is waited for.
    async fn conclude(
        &self,
        open: Open,
        completion: &Command,
        lock: &Lock,
        is_first: bool,
    ) -> Result<SystemTime, Ended> {
        let mut concluding = pin!(open.conclude(completion));
        let concluded = match timeout(self.inbox.limit(), &mut concluding).await {
            Ok(concluded) => concluded,
            Err(_) => match select(concluding, pin!(self.settled(lock, is_first))).await {
                Either::Left((concluded, _)) => concluded,
                // The connection is closed with what it waits for.
                Either::Right((settled, _)) => return settled,
            },
        };
        match concluded {
            Ok(at) => Ok(at),
            Err(NotCommitted::Again(error)) => Err(Again(error.into())),
            Err(NotCommitted::Failed(error)) => Err(Failed(error.into())),
            Err(NotCommitted::Unable(error)) => Err(unable(error)),
            Err(NotCommitted::Unknown) => self.settled(lock, is_first).await,
            Err(NotCommitted::Over) => self.settled(lock, false).await,
        }
    }

    async fn open(&self) -> Result<Open, Ended> {
        let limit = self.inbox.limit();
        let lease = self.lease().await?;
        match timeout(limit, Open::over(lease, limit)).await {
            Ok(Ok(open)) => Ok(open),
            Ok(Err(error)) => Err(self.broken(not_run(error).into())),
            Err(_) => Err(Again(not_run(StoreError::timeout("PREPARE was not answered")).into())),
        }
    }

    async fn lease(&self) -> Result<Lease, Ended> {
        let (pool, wait) = (self.inbox.pool(), self.inbox.max_wait());
        let mut leasing = pin!(pool.lease());
        let mut leased = timeout(wait.min(NOTICED), &mut leasing).await;
        if leased.is_err() && wait > NOTICED {
            self.inbox.tell(&pool.exhausted(NOTICED));
            leased = timeout(wait - NOTICED, leasing).await;
        }
        match leased {
            Ok(Ok(lease)) => Ok(lease),
            // The server may be on its way back.
            Ok(Err(error)) => {
                let error = pool.unreachable(error);
                self.inbox.tell(&error);
                Err(Again(not_run(error).into()))
            }
            Err(_) => Err(Failed(not_run(pool.exhausted(wait)).into())),
        }
    }

    /// The connection led nowhere.
    fn broken(&self, error: BoxError) -> Ended {
        // The others are as old, and their server has gone away, too.
        self.inbox.pool().renew();
        Again(error)
    }

    /// What came of a transaction whose commit was not answered: when the entry was completed by it. An
    /// earlier run may have done that instead, unless this is the only one.
    ///
    /// The entry's row is locked by a commit that is still at work, and the renewal that asks waits for
    /// it. Should one come even later, it finds that it is too late: only the transaction that takes the
    /// entry out of PROCESSING is committed.
    async fn settled(&self, lock: &Lock, is_only: bool) -> Result<SystemTime, Ended> {
        let store = self.inbox.store();
        loop {
            if let Ok(answer) = store.apply(self.layer.renewal(lock)).await {
                match answer.reply {
                    // Not long ago: the entry does not tell this grant when.
                    Reply::Settled(State::Completed) if is_only => return Ok(answer.now),
                    // What this run answers may be of an effect that there is not; the entry has the
                    // other's.
                    Reply::Settled(State::Completed) => {
                        return Err(Failed(undone(InboxError::CommittedBefore).into()));
                    }
                    Reply::Renewed => {
                        let error = "the commit was not answered, and has not taken place";
                        return Err(Again(error.into()));
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
            sleep(PAUSE).await;
        }
    }

    fn unrecorded(&self, not: NotCommitted) -> Ended {
        match not {
            NotCommitted::Again(error) => Again(error.into()),
            NotCommitted::Failed(error) => Failed(error.into()),
            NotCommitted::Unable(error) => unable(error),
            NotCommitted::Over | NotCommitted::Unknown => {
                Failed("whether the transaction was committed is not known".into())
            }
        }
    }
}

/// The server could not commit. What to do about it is told, as of the store's own calls.
fn unable(error: tokio_postgres::Error) -> Ended {
    Failed(undone(StoreError::unavailable(explained(error))).into())
}
