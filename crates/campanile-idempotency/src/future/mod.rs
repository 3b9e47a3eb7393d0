//! The response future: one request from its acquire to the store's last answer.

mod failure;
mod running;
mod state;

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{
    BoxError, BoxableError, CarryLock, Duplicate, Fingerprint, Outcome, Parked, StoreKey, Unguarded,
};
use pin_project_lite::pin_project;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use self::running::Running;
use self::state::{State, StateProj, Then, Wait};
use crate::error::{Exhausted, Handover, IdempotencyError};
use crate::keeper::{Acquisition, HeldLock, Settled, Settlement, stopped};
use crate::layer::Shared;
use crate::policy::{OnGivenUp, OnLocked, OnLost};
use crate::reply::ReplyCodec;
use crate::service::CloneableService;

pin_project! {
    /// The response of an [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation
    /// It may be dropped at any time. While it acquires, the lock is handed back as never tried.
    /// While the inner service works, that is dropped first; then the attempt counts as failed, or
    /// what [`OnAbandoned`](crate::policy::OnAbandoned) says; a driver's revoke or shutdown hands it
    /// back. While it settles, the settlement takes place all the same.
    pub struct ResponseFuture<S, R, C>
    where
        S: Service<R>,
    {
        shared: Shared<C>,
        // How long `OnLocked::Wait` may still wait.
        patience: Option<Duration>,
        #[pin]
        state: State<S, R>,
    }
}

/// A request that has no lock yet, with the service that will process it.
pub(crate) struct Pending<S, R> {
    pub(crate) service: S,
    pub(crate) request: R,
    pub(crate) key: StoreKey,
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl<S: Service<R>, R, C> ResponseFuture<S, R, C> {
    pub(crate) fn refuse(shared: Shared<C>, error: IdempotencyError) -> Self {
        Self {
            shared,
            patience: None,
            state: State::Refused { error: Some(error) },
        }
    }

    pub(crate) fn unguarded(shared: Shared<C>, future: S::Future, why: Unguarded) -> Self {
        Self {
            shared,
            patience: None,
            state: State::Unguarded { future, why },
        }
    }

    pub(crate) fn acquire(shared: Shared<C>, pending: Pending<S, R>) -> Self
    where
        R: CarryLock,
    {
        let patience = match shared.guard.locked {
            OnLocked::Error => None,
            OnLocked::Wait { at_most } => Some(at_most),
        };
        let state = acquiring(&shared, pending);
        Self {
            shared,
            patience,
            state,
        }
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &*this.shared;
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Refused { error } => {
                    let error = error.take().expect("polled after it was ready");
                    return Poll::Ready(Err(error.into()));
                }
                StateProj::Acquiring {
                    acquiring,
                    pending,
                    span,
                } => {
                    let answer = ready!(span.in_scope(|| Pin::new(acquiring).poll(cx)));
                    let pending = pending.take().expect("taken once, with the answer");
                    let answer = answer.unwrap_or_else(|_| gone());
                    acquired(shared, answer, pending, *this.patience)
                }
                StateProj::Waiting { wait, pending } => {
                    let waited = ready!(wait.as_mut().poll(cx));
                    if let Some(left) = this.patience {
                        *left = left.saturating_sub(waited);
                    }
                    State::Readying {
                        pending: pending.take(),
                    }
                }
                StateProj::Readying { pending } => {
                    let waiting = pending.as_mut().expect("taken once, when it is ready");
                    if let Err(error) = ready!(waiting.service.poll_ready(cx)) {
                        return Poll::Ready(Err(error.into()));
                    }
                    acquiring(shared, pending.take().expect("it was there just now"))
                }
                StateProj::Processing {
                    future,
                    running,
                    lost,
                    span,
                } => {
                    // The deadline first: a handler that was paused with its process beyond its
                    // lock is not polled again.
                    if shared.guard.lost == OnLost::Cancel
                        && let Poll::Ready(lost) = Pin::new(lost).poll(cx)
                    {
                        State::refused(IdempotencyError::LockLost(lost))
                    } else {
                        let inner = running.as_mut().expect("taken once, at its end");
                        let result = ready!(span.in_scope(|| inner.poll(future, cx)));
                        let mut running = running.take().expect("it was there just now");
                        // User code dies before its lock is let go.
                        running.call(|| this.state.set(State::Answered { outcome: None }));
                        match result {
                            Ok(reply) => completed(shared, running, reply),
                            Err(error) => failure::failed(shared, running, error),
                        }
                    }
                }
                StateProj::Answered { outcome } => {
                    return Poll::Ready(Ok(outcome.take().expect("polled after it was ready")));
                }
                StateProj::Unguarded { future, why } => {
                    let reply = ready!(future.poll(cx)).map_err(Into::into)?;
                    return Poll::Ready(Ok(Outcome::Unguarded(reply, *why)));
                }
                StateProj::Settling {
                    settling,
                    then,
                    span,
                } => {
                    let answer = ready!(span.in_scope(|| Pin::new(settling).poll(cx)));
                    return Poll::Ready(match then.take().expect("polled after it was ready") {
                        Then::Answer(outcome) => answer.map(|()| outcome).map_err(Into::into),
                        // The handler's failure tells more than that it could not be recorded.
                        Then::Error(error) => Err(error.into()),
                    });
                }
            };
            // Drops what the old state held, the inner future before its lock.
            this.state.set(next);
        }
    }
}

fn acquiring<S: Service<R>, R: CarryLock, C>(
    shared: &Shared<C>,
    pending: Pending<S, R>,
) -> State<S, R> {
    let interrupt = pending.request.interrupt();
    let (key, fingerprint) = (pending.key.clone(), pending.fingerprint);
    let acquiring = shared
        .guard
        .keeper
        .acquire(key, &shared.terms, fingerprint, interrupt);
    let span = tracing::debug_span!("acquire");
    State::Acquiring {
        acquiring,
        pending: Some(pending),
        span,
    }
}

/// What follows from the answer to an acquire. What does not run drops the ready service, and so
/// gives its permit back.
fn acquired<S, R, C>(
    shared: &Shared<C>,
    answer: Acquisition,
    pending: Pending<S, R>,
    patience: Option<Duration>,
) -> State<S, R>
where
    R: CarryLock,
    S: Service<R> + CloneableService,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    let key = pending.key.key().clone();
    let error = match answer {
        Acquisition::Held(lock) => return process(shared, lock, pending),
        Acquisition::Exhausted {
            lock,
            attempts,
            burials,
            last_error,
        } => {
            return exhausted(shared, lock, attempts, burials, last_error);
        }
        Acquisition::Duplicate {
            reply,
            attempts,
            completed_at,
        } => {
            let reply = reply.and_then(|bytes| decode(shared, bytes));
            return State::answer(Outcome::Duplicate(Duplicate::new(
                reply,
                attempts,
                completed_at,
            )));
        }
        Acquisition::Parked { attempts, reason } => {
            return State::answer(Outcome::Parked(Parked::new(attempts, reason)));
        }
        Acquisition::Locked {
            retry_after,
            settled,
        } => {
            return match patience.filter(|left| !left.is_zero()) {
                Some(left) => wait(pending, retry_after.min(left), settled),
                None => State::refused(IdempotencyError::Locked {
                    key,
                    retry_after,
                    settled,
                }),
            };
        }
        Acquisition::BackingOff {
            retry_after,
            attempts,
        } => IdempotencyError::BackingOff {
            key,
            retry_after,
            attempts,
        },
        Acquisition::Mismatch => IdempotencyError::Mismatch { key },
        Acquisition::Unavailable(error) => {
            let open = shared
                .guard
                .fail_open
                .as_ref()
                .is_some_and(|when| when(&key, &error));
            if open {
                tracing::warn!(%error, "processed without a lock");
                let Pending {
                    mut service,
                    request,
                    ..
                } = pending;
                let future = service.call(request);
                return State::Unguarded {
                    future,
                    why: Unguarded::StoreDown,
                };
            }
            IdempotencyError::Store(error)
        }
        Acquisition::ShuttingDown => IdempotencyError::ShuttingDown,
    };
    State::refused(error)
}

fn process<S, R, C>(shared: &Shared<C>, held: HeldLock, pending: Pending<S, R>) -> State<S, R>
where
    R: CarryLock,
    S: Service<R>,
{
    let lock = held.lock().clone();
    // Made before the rest of `pending` is taken apart, and so dropped after it: should the inner
    // service panic, user code dies before its lock is let go here, too.
    let mut running = Running::new(held, pending.request.interrupt(), shared.guard.clone());
    let Pending {
        mut service,
        mut request,
        ..
    } = pending;
    let span = tracing::debug_span!(
        "process",
        campanile.token = lock.token().get(),
        campanile.attempt = lock.attempt()
    );
    let lost = lock.lost();
    let future = span.in_scope(|| {
        running.call(|| {
            request.set_lock(lock);
            service.call(request)
        })
    });
    State::Processing {
        future,
        running: Some(running),
        lost,
        span,
    }
}

fn completed<S, R, C>(shared: &Shared<C>, running: Running, reply: S::Response) -> State<S, R>
where
    S: Service<R>,
    C: ReplyCodec<S::Response>,
{
    let settlement = Settlement::Complete {
        reply: encode(shared, &reply),
    };
    let outcome = Outcome::Processed(reply);
    State::settle(running.finish(), settlement, Then::Answer(outcome))
}

fn exhausted<S: Service<R>, R, C>(
    shared: &Shared<C>,
    mut lock: HeldLock,
    attempts: u32,
    burials: u32,
    last_error: Option<Box<str>>,
) -> State<S, R> {
    match shared.guard.given_up {
        OnGivenUp::Reject => {
            let parked = Outcome::Parked(Parked::new(attempts, last_error));
            let settlement = Settlement::Reject { reason: "".into() };
            State::settle(lock, settlement, Then::Answer(parked))
        }
        OnGivenUp::HandOver => {
            lock.drop_fails(shared.guard.backoff.delay(burials), false, "".into());
            let key = lock.lock().key().clone();
            let lock = Handover::new(Some(lock));
            let exhausted = Exhausted {
                key,
                attempts,
                burials,
                last_error,
                lock,
            };
            State::refused(IdempotencyError::Exhausted(exhausted))
        }
    }
}

fn wait<S, R>(pending: Pending<S, R>, at_most: Duration, settled: Option<Settled>) -> State<S, R>
where
    S: Service<R> + CloneableService,
{
    let Pending {
        service,
        request,
        key,
        fingerprint,
    } = pending;
    // A clone is not ready: the permit goes back with the service that was.
    let pending = Some(Pending {
        service: service.clone(),
        request,
        key,
        fingerprint,
    });
    drop(service);
    let wait: Wait = Box::pin(async move {
        let start = Instant::now();
        match settled {
            Some(settled) => drop(timeout(at_most, settled).await),
            None => sleep(at_most).await,
        }
        start.elapsed()
    });
    State::Waiting { wait, pending }
}

/// The bytes to keep. The effect has happened, so nothing here can be an error.
fn encode<T, C: ReplyCodec<T>>(shared: &Shared<C>, reply: &T) -> Option<Bytes> {
    let most = shared.guard.max_reply_bytes;
    match catch_unwind(AssertUnwindSafe(|| shared.codec.encode(reply))) {
        Ok(Ok(Some(bytes))) if bytes.len() > most => {
            tracing::debug!(
                size = bytes.len(),
                most,
                "completed without its reply: too large"
            );
            None
        }
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            tracing::warn!(error, "completed without its reply: it cannot be encoded");
            None
        }
        Err(_) => {
            tracing::warn!("completed without its reply: its encoding panicked");
            None
        }
    }
}

fn decode<T, C: ReplyCodec<T>>(shared: &Shared<C>, bytes: Bytes) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(|| shared.codec.decode(bytes))) {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => {
            tracing::warn!(
                error,
                "duplicate answered without the reply: it cannot be decoded"
            );
            None
        }
        Err(_) => {
            tracing::warn!("duplicate answered without the reply: its decoding panicked");
            None
        }
    }
}

fn gone() -> Acquisition {
    Acquisition::Unavailable(stopped())
}

impl<S: Service<R>, R, C> fmt::Debug for ResponseFuture<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("state", &self.state.name())
            .finish_non_exhaustive()
    }
}
