//! The response future, which takes one request from its acquire to the last answer of the store.

mod acquired;
mod failure;
mod replies;
mod running;
mod state;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{
    BoxError, BoxableError, CarryLock, Fingerprint, Outcome, Record, StoreKey, Unguarded,
};
use pin_project_lite::pin_project;
use tower_service::Service;

use self::acquired::acquired;
use self::failure::failed;
pub(crate) use self::replies::encode;
use self::running::Running;
use self::state::{Early, State, StateProj, Then};
use crate::error::{IdempotencyError, Panicked};
use crate::keeper::{Acquisition, Settled, Settlement, stopped};
use crate::layer::Shared;
use crate::policy::{OnLocked, OnLost};
use crate::reply::ReplyCodec;
use crate::service::CloneableService;
use crate::store::StoreErrorKind;

pin_project! {
    /// The response future of [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation
    /// It can be dropped at any time. While it acquires, the lock is released and no attempt is
    /// counted. While the inner service is running, the inner future is dropped first, and then
    /// [`OnAbandoned`](crate::policy::OnAbandoned) decides; by default, the attempt has failed. On
    /// a revoke or shutdown of the driver, the attempt is not counted. While it settles, the
    /// settlement continues.
    pub struct ResponseFuture<S, R, C>
    where
        S: Service<R>,
    {
        shared: Shared<C>,
        // How much longer `OnLocked::Wait` may wait.
        patience: Option<Duration>,
        // For reporting a failure to the driver.
        record: Option<Record>,
        #[pin]
        state: State<S, R>,
    }
}

/// A request without a lock, with the service that will process it.
pub(crate) struct Pending<S, R> {
    pub(crate) service: S,
    pub(crate) request: R,
    pub(crate) key: StoreKey,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// The signal for which the request has waited. Kept until the next acquire is answered, which
    /// then needs no command.
    pub(crate) _waited: Option<Settled>,
}

impl<S: Service<R>, R, C> ResponseFuture<S, R, C> {
    pub(crate) fn refuse(shared: Shared<C>, error: IdempotencyError) -> Self {
        Self { shared, patience: None, record: None, state: State::Refused { error: Some(error) } }
    }

    pub(crate) fn unguarded(shared: Shared<C>, service: S, request: R, why: Unguarded) -> Self
    where
        R: CarryLock,
        S: Clone,
    {
        let interrupt = request.interrupt();
        let record = interrupt.as_ref().map(|interrupt| interrupt.record().clone());
        let turn = interrupt.and_then(|interrupt| interrupt.turn());
        let state = match turn {
            Some(turn) => {
                // The clone drops the permit that a ready service may hold.
                let then = Early::Unguarded(service.clone(), request, why);
                State::Early { turn, then: Some(then) }
            }
            None => State::unguarded(service, request, why),
        };
        Self { shared, patience: None, record, state }
    }

    pub(crate) fn acquire(shared: Shared<C>, pending: Pending<S, R>) -> Self
    where
        R: CarryLock,
    {
        let patience = match shared.guard.locked {
            OnLocked::Error => None,
            OnLocked::Wait { at_most } => Some(at_most),
        };
        let record = pending.request.interrupt().map(|interrupt| interrupt.record().clone());
        let state = acquiring(&shared, pending);
        Self { shared, patience, record, state }
    }
}

impl<S, R, C> Future for ResponseFuture<S, R, C>
where
    R: CarryLock,
    S: Service<R> + CloneableService,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    type Output = Result<Outcome<S::Response>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.as_mut().poll_outcome(cx));
        if let (Err(_), Some(record)) = (&answer, self.project().record) {
            record.set_failed();
        }
        Poll::Ready(answer)
    }
}

impl<S, R, C> ResponseFuture<S, R, C>
where
    R: CarryLock,
    S: Service<R> + CloneableService,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    fn poll_outcome(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Outcome<S::Response>, BoxError>> {
        let mut this = self.project();
        let shared = &*this.shared;
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Refused { error } => {
                    let error = error.take().expect("polled after completion");
                    return Poll::Ready(Err(error.into()));
                }
                StateProj::Acquiring { acquiring, pending, span } => {
                    let answer = ready!(span.in_scope(|| Pin::new(acquiring).poll(cx)));
                    let pending = pending.take().expect("taken only once, with the answer");
                    let answer = answer.unwrap_or_else(|_| gone());
                    let interrupt = pending.request.interrupt();
                    match interrupt.and_then(|interrupt| interrupt.turn()) {
                        Some(turn) => State::early(turn, answer, pending),
                        None => acquired(shared, answer, pending, *this.patience),
                    }
                }
                StateProj::Early { turn, then } => {
                    ready!(Pin::new(&mut *turn).poll(cx));
                    if turn.is_cancelled() {
                        return Poll::Ready(Err(IdempotencyError::ShuttingDown.into()));
                    }
                    let early = then.as_mut().expect("taken only once, when its turn has come");
                    if let Err(error) = ready!(early.service().poll_ready(cx)) {
                        return Poll::Ready(Err(error.into()));
                    }
                    match then.take().expect("checked above") {
                        Early::Acquired(answer, pending) if is_stale(&answer) => {
                            acquiring(shared, pending)
                        }
                        Early::Acquired(answer, pending) => {
                            acquired(shared, answer, pending, *this.patience)
                        }
                        Early::Unguarded(service, request, why) => {
                            State::unguarded(service, request, why)
                        }
                    }
                }
                StateProj::Waiting { wait, pending } => {
                    let waited = ready!(wait.as_mut().poll(cx));
                    if let Some(left) = this.patience {
                        *left = left.saturating_sub(waited);
                    }
                    State::Readying { pending: pending.take() }
                }
                StateProj::Readying { pending } => {
                    let waiting = pending.as_mut().expect("taken only once, when it is ready");
                    if let Err(error) = ready!(waiting.service.poll_ready(cx)) {
                        return Poll::Ready(Err(error.into()));
                    }
                    acquiring(shared, pending.take().expect("checked above"))
                }
                StateProj::Processing { future, running, lost, span } => {
                    let inner = running.as_mut().expect("taken only once, when it ends");
                    let cancel = shared.guard.lost == OnLost::Cancel;
                    // Check the deadline first: a handler that was suspended with its process until
                    // after the deadline must not be polled again.
                    if let Some(lost) = inner.loss().filter(|_| cancel) {
                        State::refused(IdempotencyError::LockLost(lost))
                    } else {
                        let polled = span.in_scope(|| inner.handle(|| future.poll(cx)));
                        let polled = polled.map_or_else(
                            |panicked| Poll::Ready(Err(Failure::Panicked(panicked))),
                            |polled| polled.map_err(Failure::Error),
                        );
                        match polled {
                            // Only a pending handler needs to be woken by the loss.
                            Poll::Pending if cancel => {
                                let lost = ready!(Pin::new(lost).poll(cx));
                                State::refused(IdempotencyError::LockLost(lost))
                            }
                            Poll::Pending => return Poll::Pending,
                            Poll::Ready(result) => {
                                let mut running = running.take().expect("checked above");
                                // Drop user code before its lock is released.
                                running.call(|| this.state.set(State::Answered { outcome: None }));
                                ended(shared, running, result)
                            }
                        }
                    }
                }
                StateProj::Answered { outcome } => {
                    return Poll::Ready(Ok(outcome.take().expect("polled after completion")));
                }
                StateProj::Unguarded { future, why } => {
                    let reply = ready!(future.poll(cx)).map_err(Into::into)?;
                    return Poll::Ready(Ok(Outcome::Unguarded(reply, *why)));
                }
                StateProj::Settling { settling, then, span } => {
                    let answer = ready!(span.in_scope(|| Pin::new(settling).poll(cx)));
                    return Poll::Ready(match then.take().expect("polled after completion") {
                        Then::Answer(outcome) => answer.map(|()| outcome).map_err(Into::into),
                        // The handler's failure is more important than a failure to record it.
                        Then::Error(error) => Err(error.into()),
                    });
                }
            };
            // Drops the contents of the old state, the inner future before its lock.
            this.state.set(next);
        }
    }
}

/// Returns whether an answer may change by the time the record's turn has come: the previous record
/// may have held the key, the store may be available again, or the lock may be lost.
fn is_stale(answer: &Acquisition) -> bool {
    match answer {
        Acquisition::Held(lock) => lock.control().loss().is_some(),
        Acquisition::Unavailable(error) => error.kind() != StoreErrorKind::Unreadable,
        Acquisition::Locked { .. } | Acquisition::BackingOff { .. } => true,
        _ => false,
    }
}

/// How the inner service failed.
enum Failure<E> {
    Error(E),
    Panicked(Panicked),
}

fn ended<S, R, C>(
    shared: &Shared<C>,
    running: Running,
    result: Result<S::Response, Failure<S::Error>>,
) -> State<S, R>
where
    S: Service<R>,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    match result {
        Ok(reply) => completed(shared, running, reply),
        Err(Failure::Error(error)) => failed(shared, running, error),
        Err(Failure::Panicked(panicked)) => failed(shared, running, panicked),
    }
}

fn acquiring<S: Service<R>, R: CarryLock, C>(
    shared: &Shared<C>,
    pending: Pending<S, R>,
) -> State<S, R> {
    let interrupt = pending.request.interrupt();
    if let Some(interrupt) = &interrupt {
        interrupt.set_entry_kept(shared.terms.retention.completed);
    }
    let (key, fingerprint) = (pending.key.clone(), pending.fingerprint);
    let acquiring = shared.guard.keeper.acquire(key, &shared.terms, fingerprint, interrupt);
    let span = tracing::debug_span!("acquire");
    State::Acquiring { acquiring, pending: Some(pending), span }
}

fn completed<S, R, C>(shared: &Shared<C>, running: Running, reply: S::Response) -> State<S, R>
where
    S: Service<R>,
    C: ReplyCodec<S::Response>,
{
    if let Some(completion) = running.completion() {
        let mut held = running.finish();
        held.drop_means(Settlement::Completed(completion));
        return State::answer(Outcome::Processed(reply));
    }
    let kept = match encode(shared, running.key(), running.record(), &reply) {
        Ok(kept) => kept,
        Err(error) => return failed(shared, running, error),
    };
    let outcome = Outcome::Processed(reply);
    running.set_recording();
    State::settle(running.finish(), Settlement::Complete { reply: kept }, Then::Answer(outcome))
}

fn gone() -> Acquisition {
    Acquisition::Unavailable(stopped())
}

impl<S: Service<R>, R, C> fmt::Debug for ResponseFuture<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("state", &self.state.name()).finish_non_exhaustive()
    }
}
