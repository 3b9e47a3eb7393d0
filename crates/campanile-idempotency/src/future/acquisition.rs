//! Handling of the answer to an acquire.

use std::time::Duration;

use campanile_core::{BoxableError, CarryLock, Duplicate, Outcome, Parked, Unguarded};
use tokio::time::Instant;
use tower_service::Service;

use super::Pending;
use super::failure::failed;
use super::replies::decode;
use super::running::Running;
use super::state::{State, Then, Wait};
use crate::error::{Exhausted, Handover, IdempotencyError};
use crate::keeper::{Acquisition, HeldLock, Settled, Settlement, wait_at_most};
use crate::layer::Shared;
use crate::policy::OnGivenUp;
use crate::reply::ReplyCodec;
use crate::service::CloneableService;
use crate::store::StoreErrorKind;

/// Returns the state that follows the answer to an acquire. If the inner service does not run, the
/// ready service is dropped, which returns its permit.
pub(super) fn acquired<S, R, C>(
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
        Acquisition::Exhausted { lock, attempts, burials, last_error } => {
            return exhausted(shared, lock, attempts, burials, last_error);
        }
        Acquisition::Duplicate { reply, attempts, completed_at } => {
            if let Some(interrupt) = pending.request.interrupt() {
                interrupt.set_duplicate();
            }
            let reply = reply.and_then(|bytes| decode(shared, &key, bytes));
            return State::answer(Outcome::Duplicate(Duplicate::new(
                reply,
                attempts,
                completed_at,
            )));
        }
        Acquisition::Parked { attempts, reason } => {
            tracing::warn!(attempts, "request not processed: its key is FAILED");
            return State::answer(Outcome::Parked(Parked::new(attempts, reason)));
        }
        Acquisition::Locked { retry_after, settled } => {
            return match patience.filter(|left| !left.is_zero()) {
                Some(left) => wait(pending, retry_after.min(left), settled),
                None => State::refused(IdempotencyError::Locked { key, retry_after, settled }),
            };
        }
        Acquisition::BackingOff { retry_after, attempts } => {
            IdempotencyError::BackingOff { key, retry_after, attempts }
        }
        Acquisition::Mismatch => IdempotencyError::Mismatch { key },
        Acquisition::Unavailable(error) => {
            // An entry that cannot be read may belong to a completed key.
            let is_away = error.kind() != StoreErrorKind::Unreadable;
            let fail_open = shared.guard.fail_open.as_ref().filter(|_| is_away);
            if fail_open.is_some_and(|when| when(&key, &error)) {
                tracing::warn!(%error, "store unavailable; processing without a lock");
                let Pending { service, request, .. } = pending;
                return State::unguarded(service, request, Unguarded::StoreDown);
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
    S::Error: BoxableError,
{
    let lock = held.lock().clone();
    // Created before the rest of `pending` is destructured, and thus dropped after it: if the inner
    // service panics, user code is dropped before its lock is released.
    let mut running = Running::new(held, pending.request.interrupt(), shared.guard.clone());
    let Pending { mut service, mut request, .. } = pending;
    let span = tracing::debug_span!(
        "process",
        campanile.token = lock.token().get(),
        campanile.attempt = lock.attempt()
    );
    let lost = lock.lost();
    let called = span.in_scope(|| {
        running.handle(|| {
            request.set_lock(lock);
            service.call(request)
        })
    });
    match called {
        Ok(future) => State::Processing { future, running: Some(running), lost, span },
        Err(panicked) => {
            running.call(|| drop(service));
            failed(shared, running, panicked)
        }
    }
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
            let exhausted = Exhausted { key, attempts, burials, last_error, lock };
            State::refused(IdempotencyError::Exhausted(exhausted))
        }
    }
}

fn wait<S, R>(pending: Pending<S, R>, at_most: Duration, settled: Option<Settled>) -> State<S, R>
where
    S: Service<R> + CloneableService,
{
    let Pending { service, request, key, fingerprint, .. } = pending;
    // A clone is not ready: the permit is returned with the service that was.
    let not_ready = service.clone();
    let _waited = settled.clone();
    let pending = Some(Pending { service: not_ready, request, key, fingerprint, _waited });
    drop(service);
    let wait: Wait = Box::pin(async move {
        let start = Instant::now();
        wait_at_most(settled, at_most).await;
        start.elapsed()
    });
    State::Waiting { wait, pending }
}
