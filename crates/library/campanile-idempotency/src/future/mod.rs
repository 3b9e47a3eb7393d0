//! The response future, which takes one request from its acquire to the last answer of the store.

mod acquisition;
mod failed_attempt;
mod running;
mod state;
mod stored_replies;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{
    BoxError, BoxableError, CarryLock, Fingerprint, Interrupt, Outcome, Record, WithoutLock,
};
use pin_project_lite::pin_project;
use tower_service::Service;

use self::acquisition::{handle_acquisition, wait_for_release};
pub(crate) use self::failed_attempt::display_text;
use self::failed_attempt::handle_failure;
use self::running::Running;
use self::state::{AfterSettle, AheadOfTurn, ResponseState, ResponseStateProj};
pub(crate) use self::stored_replies::{catch_panic, encode_reply};
use crate::error::{IdempotencyError, Panicked};
use crate::keeper::{Acquisition, LockKey, RunSite, SettledFuture, Settlement, stopped_error};
use crate::layer::LayerParts;
use crate::policy::{OnLocked, OnLost};
use crate::reply::ReplyCodec;
use crate::service::CloneableService;

pin_project! {
    /// The response future of [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation
    /// It can be dropped at any time. While it acquires, the lock is released and no attempt is
    /// counted. While the inner service is running, the inner future is dropped first, and then
    /// [`OnDropped`](crate::policy::OnDropped) decides; by default, the attempt has failed. On
    /// a revoke or shutdown of the driver, the attempt is not counted, at most 8 times for a key. While
    /// it settles, the settlement continues.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, R, C>
    where
        S: Service<R>,
    {
        layer: LayerParts<C>,
        // How much longer `OnLocked::Wait` may wait.
        wait_budget: Option<Duration>,
        // For reporting progress to the driver.
        record: Option<Record>,
        #[pin]
        state: ResponseState<S, R>,
    }

    impl<S, R, C> PinnedDrop for ResponseFuture<S, R, C>
    where
        S: Service<R>,
    {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let ResponseStateProj::Processing { .. } = this.state.project() {
                this.layer.settings.metrics.count_dropped();
            }
        }
    }
}

/// A request without a lock, with the service that will process it.
pub(crate) struct Pending<S, R> {
    pub(crate) service: S,
    pub(crate) request: R,
    pub(crate) key: LockKey,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// The signal for which the request has waited. Kept until the next acquire is answered, which
    /// then needs no command.
    pub(crate) _waited: Option<SettledFuture>,
    /// Whether the request has waited for the lock of another process.
    pub(crate) waited_elsewhere: bool,
}

impl<S: Service<R>, R, C> ResponseFuture<S, R, C> {
    pub(crate) fn refuse(layer: LayerParts<C>, error: IdempotencyError) -> Self {
        Self {
            layer,
            wait_budget: None,
            record: None,
            state: ResponseState::Refused { error: Some(error) },
        }
    }

    pub(crate) fn unguarded(
        layer: LayerParts<C>,
        service: S,
        request: R,
        reason: WithoutLock,
    ) -> Self
    where
        R: CarryLock,
        S: Clone,
    {
        let interrupt = request.interrupt();
        let record = interrupt.as_ref().map(|interrupt| interrupt.record().clone());
        let turn = interrupt.and_then(|interrupt| interrupt.turn(false));
        let state = match turn {
            Some(turn) => {
                // The clone drops the permit that a ready service may hold.
                let ahead = AheadOfTurn::WithoutLock(service.clone(), request, reason);
                ResponseState::WaitingForTurn { turn, ahead: Some(ahead) }
            }
            None => ResponseState::unguarded(&layer.settings.metrics, service, request, reason),
        };
        Self { layer, wait_budget: None, record, state }
    }

    pub(crate) fn acquire(layer: LayerParts<C>, pending: Pending<S, R>) -> Self
    where
        R: CarryLock,
    {
        let wait_budget = match layer.policies.locked {
            OnLocked::Error => None,
            OnLocked::Wait { at_most } => Some(at_most),
        };
        let record = pending.request.interrupt().map(|interrupt| interrupt.record().clone());
        let state = start_acquire(&layer, pending);
        Self { layer, wait_budget, record, state }
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
        let answer = self.as_mut().poll_outcome(cx);
        let this = self.project();
        if let Poll::Ready(answer) = &answer {
            this.layer.settings.metrics.count_answer(answer);
        }
        let is_processing = match &answer {
            Poll::Pending => this.state.is_processing(),
            // Middleware may call the layer again.
            Poll::Ready(answer) => answer.is_err(),
        };
        // While the record is ahead of its turn, this future may be that of an earlier attempt, which
        // middleware has not dropped yet.
        if let Some(record) = this.record
            && is_processing
            && !record.attempt().is_ahead()
        {
            record.attempt().set_processing();
        }
        answer
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
        let (layer, record) = (&*this.layer, this.record.as_ref());
        loop {
            let next = match this.state.as_mut().project() {
                ResponseStateProj::Refused { error } => {
                    let error = error.take().expect("polled after completion");
                    return Poll::Ready(Err(error.into()));
                }
                ResponseStateProj::Acquiring { acquiring, pending, span } => {
                    let answer = ready!(span.in_scope(|| Pin::new(acquiring).poll(cx)));
                    let pending = pending.take().expect("taken only once, with the answer");
                    let answer = answer.unwrap_or_else(|_| keeper_stopped());
                    let interrupt = pending.request.interrupt();
                    let duplicate = matches!(answer, Acquisition::Duplicate { .. });
                    match interrupt.and_then(|interrupt| interrupt.turn(duplicate)) {
                        Some(turn) => ResponseState::wait_for_turn(turn, answer, pending),
                        None => {
                            handle_acquisition(layer, answer, pending, record, *this.wait_budget)
                        }
                    }
                }
                ResponseStateProj::WaitingForTurn { turn, ahead } => {
                    ready!(Pin::new(&mut *turn).poll(cx));
                    if turn.is_cancelled() {
                        return Poll::Ready(Err(IdempotencyError::ShuttingDown.into()));
                    }
                    let request = ahead.as_mut().expect("taken only once, when its turn has come");
                    if let Err(error) = ready!(request.service().poll_ready(cx)) {
                        return Poll::Ready(Err(error.into()));
                    }
                    match ahead.take().expect("checked above") {
                        AheadOfTurn::Acquired(
                            Acquisition::Held(lock) | Acquisition::Exhausted { lock, .. },
                            pending,
                        ) if lock.control().loss().is_some() => {
                            wait_for_release(pending, lock, layer.settings.ttl)
                        }
                        AheadOfTurn::Acquired(answer, pending) if is_stale(&answer) => {
                            start_acquire(layer, pending)
                        }
                        AheadOfTurn::Acquired(answer, pending) => {
                            if let Acquisition::Held(lock) | Acquisition::Exhausted { lock, .. } =
                                &answer
                            {
                                lock.restart_hold();
                            }
                            handle_acquisition(layer, answer, pending, record, *this.wait_budget)
                        }
                        AheadOfTurn::WithoutLock(service, request, reason) => {
                            let metrics = &layer.settings.metrics;
                            ResponseState::unguarded(metrics, service, request, reason)
                        }
                    }
                }
                ResponseStateProj::WaitingForLock { wait, pending } => {
                    // `None` for a lock of its own.
                    if let Some(waited) = ready!(wait.as_mut().poll(cx)) {
                        layer.settings.metrics.lock_waits.record(waited.as_secs_f64());
                        if let Some(budget) = this.wait_budget {
                            *budget = budget.saturating_sub(waited);
                        }
                    }
                    ResponseState::Readying { pending: pending.take() }
                }
                ResponseStateProj::Readying { pending } => {
                    let waiting = pending.as_mut().expect("taken only once, when it is ready");
                    if let Err(error) = ready!(waiting.service.poll_ready(cx)) {
                        return Poll::Ready(Err(error.into()));
                    }
                    start_acquire(layer, pending.take().expect("checked above"))
                }
                ResponseStateProj::Processing { future, running, lost, span } => {
                    let inner = running.as_mut().expect("taken only once, when it ends");
                    let cancel = layer.policies.lost == OnLost::Cancel;
                    // Check the deadline first: a handler that was suspended with its process until
                    // after the deadline must not be polled again.
                    if let Some(lost) = inner.loss().filter(|_| cancel) {
                        ResponseState::refused(IdempotencyError::LockLost(lost))
                    } else {
                        let polled = span.in_scope(|| inner.run_handler(|| future.poll(cx)));
                        let polled = polled.map_or_else(
                            |panicked| Poll::Ready(Err(Failure::Panicked(panicked))),
                            |polled| polled.map_err(Failure::Error),
                        );
                        match polled {
                            // Only a pending handler needs to be woken by the loss.
                            Poll::Pending if cancel => {
                                let lost = ready!(Pin::new(lost).poll(cx));
                                ResponseState::refused(IdempotencyError::LockLost(lost))
                            }
                            Poll::Pending => return Poll::Pending,
                            Poll::Ready(result) => {
                                let mut running = running.take().expect("checked above");
                                // Drop user code before its lock is released.
                                running.run_user_code(|| {
                                    this.state.set(ResponseState::Answered { outcome: None })
                                });
                                handle_result(layer, running, result)
                            }
                        }
                    }
                }
                ResponseStateProj::Answered { outcome } => {
                    return Poll::Ready(Ok(outcome.take().expect("polled after completion")));
                }
                ResponseStateProj::WithoutLock { future, reason } => {
                    let reply = ready!(future.poll(cx)).map_err(Into::into)?;
                    return Poll::Ready(Ok(Outcome::WithoutLock(reply, *reason)));
                }
                ResponseStateProj::Settling { settling, after, span } => {
                    let answer = ready!(span.in_scope(|| Pin::new(settling).poll(cx)));
                    return Poll::Ready(match after.take().expect("polled after completion") {
                        AfterSettle::Answer(outcome) => {
                            answer.map(|()| outcome).map_err(Into::into)
                        }
                        // The handler's failure is more important than a failure to record it.
                        AfterSettle::Error(error) => Err(error.into()),
                    });
                }
            };
            // Drops the contents of the old state, the inner future before its lock.
            this.state.set(next);
        }
    }
}

/// Checks whether an answer may change by the time the record's turn has come: the previous record
/// may have held the key, or the store may be available again.
fn is_stale(answer: &Acquisition) -> bool {
    match answer {
        Acquisition::Unavailable(error) => error.kind().is_outage(),
        Acquisition::Locked { .. } | Acquisition::BackingOff { .. } => true,
        _ => false,
    }
}

/// How the inner service failed.
enum Failure<E> {
    Error(E),
    Panicked(Panicked),
}

fn handle_result<S, R, C>(
    layer: &LayerParts<C>,
    running: Running,
    result: Result<S::Response, Failure<S::Error>>,
) -> ResponseState<S, R>
where
    S: Service<R>,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    match result {
        Ok(reply) => handle_success(layer, running, reply),
        Err(Failure::Error(error)) => handle_failure(layer, running, error),
        Err(Failure::Panicked(panicked)) => handle_failure(layer, running, panicked),
    }
}

fn start_acquire<S: Service<R>, R: CarryLock, C>(
    layer: &LayerParts<C>,
    pending: Pending<S, R>,
) -> ResponseState<S, R> {
    let interrupt = pending.request.interrupt();
    let (key, fingerprint) = (pending.key.clone(), pending.fingerprint);
    let site = RunSite::of(interrupt.as_ref().map(Interrupt::record));
    let keeper = &layer.policies.keeper;
    let acquiring = keeper.acquire(key, &layer.settings, fingerprint, &site, interrupt);
    let span = tracing::debug_span!("acquire");
    ResponseState::Acquiring { acquiring, pending: Some(pending), span }
}

fn handle_success<S, R, C>(
    layer: &LayerParts<C>,
    running: Running,
    reply: S::Response,
) -> ResponseState<S, R>
where
    S: Service<R>,
    C: ReplyCodec<S::Response>,
{
    if let Some(completion) = running.completion() {
        let mut held = running.finish();
        held.set_drop_settlement(Settlement::Completed(completion));
        return ResponseState::answer(Outcome::Processed(reply));
    }
    let encoded = match encode_reply(layer, running.key(), running.record(), &reply) {
        Ok(encoded) => encoded,
        Err(error) => return handle_failure(layer, running, error),
    };
    let outcome = Outcome::Processed(reply);
    running.set_recording();
    ResponseState::settle(
        running.finish(),
        Settlement::Complete { reply: encoded },
        AfterSettle::Answer(outcome),
    )
}

fn keeper_stopped() -> Acquisition {
    Acquisition::Unavailable(stopped_error())
}

impl<S: Service<R>, R, C> fmt::Debug for ResponseFuture<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("state", &self.state.name()).finish_non_exhaustive()
    }
}
