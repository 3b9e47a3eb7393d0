//! Handling of the answer to an acquire.

use std::future::Future;
use std::time::{Duration, SystemTime};

use campanile_core::telemetry::DuplicateCause;
use campanile_core::trace::tracer;
use campanile_core::{
    BoxableError, CarryLock, Details, Duplicate, GivenUp, Outcome, Record, Timestamp, WithoutLock,
};
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::Pending;
use super::failed_attempt::handle_failure;
use super::running::Running;
use super::state::{AfterSettle, ResponseState};
use super::stored_replies::decode_reply;
use crate::error::{ErrorLock, Exhausted, IdempotencyError};
use crate::fields::coordinates;
use crate::keeper::{Acquisition, HeldLock, SettledFuture, Settlement, wait_at_most};
use crate::layer::LayerParts;
use crate::policy::OnExhausted;
use crate::reply::ReplyCodec;
use crate::service::CloneableService;

/// If the inner service does not run, the ready service is dropped, which frees its permit.
pub(super) fn handle_acquisition<S, R, C>(
    layer: &LayerParts<C>,
    answer: Acquisition,
    pending: Pending<S, R>,
    record: Option<&Record>,
    wait_budget: Option<Duration>,
) -> ResponseState<S, R>
where
    R: CarryLock,
    S: Service<R> + CloneableService,
    S::Error: BoxableError,
    C: ReplyCodec<S::Response>,
{
    let key = pending.key.idempotency_key.clone();
    let namespace = layer.policies.namespace.as_str();
    let error = match answer {
        Acquisition::Held(lock) => return process(layer, lock, pending),
        Acquisition::Exhausted { lock, attempts, give_ups, last_error } => {
            return handle_exhausted(layer, lock, attempts, give_ups, last_error);
        }
        Acquisition::Duplicate { reply, attempts, completed_at, details, cause, age: _ } => {
            let mut waited_elsewhere = pending.waited_elsewhere;
            if let Some(interrupt) = pending.request.interrupt() {
                interrupt.set_duplicate();
                waited_elsewhere |= interrupt.record().attempt().has_waited_elsewhere();
            }
            let cause = match cause {
                DuplicateCause::Unknown if waited_elsewhere => DuplicateCause::OtherProcess,
                DuplicateCause::Unknown => {
                    cause_of_completed(record, details.as_ref(), completed_at)
                }
                cause => cause,
            };
            layer.settings.metrics.duplicates.of(cause).increment(1);
            if let Some(tracer) = tracer()
                && let Some(run) = details.as_ref().and_then(Details::trace)
            {
                tracer.link_completed(&run);
            }
            let reply = reply.and_then(|bytes| decode_reply(layer, &key, record, bytes));
            let mut duplicate = Duplicate::new(reply, attempts, completed_at);
            duplicate.details = details;
            return ResponseState::answer(Outcome::Duplicate(duplicate));
        }
        Acquisition::AlreadyGivenUp { attempts, reason } => {
            tracing::warn!(
                record = coordinates(record),
                namespace,
                attempts,
                "request not processed: its key is FAILED"
            );
            return ResponseState::answer(Outcome::GivenUp(GivenUp::new(attempts, reason)));
        }
        Acquisition::Locked { retry_after, settled } => {
            if settled.is_none()
                && let Some(interrupt) = pending.request.interrupt()
            {
                interrupt.record().attempt().set_waited_elsewhere();
            }
            return match wait_budget.filter(|remaining| !remaining.is_zero()) {
                Some(remaining) => wait_for_lock(pending, retry_after.min(remaining), settled),
                None => {
                    ResponseState::refused(IdempotencyError::Locked { key, retry_after, settled })
                }
            };
        }
        Acquisition::BackingOff { retry_after, attempts } => {
            IdempotencyError::BackingOff { key, retry_after, attempts }
        }
        Acquisition::Mismatch => IdempotencyError::Mismatch { key },
        Acquisition::Unavailable(error) => {
            // An entry that cannot be read or found may belong to a completed key.
            let is_outage = error.kind().is_outage();
            let fail_open = layer.policies.fail_open.as_ref().filter(|_| is_outage);
            if fail_open.is_some_and(|predicate| predicate(&key, &error)) {
                tracing::warn!(
                    campanile.duplicate_effect_possible = "without_lock",
                    record = coordinates(record),
                    namespace,
                    key_digest = %pending.key.store_key.digest_hex(),
                    %error,
                    "store unavailable; processing without a lock"
                );
                let (Pending { service, request, .. }, metrics) =
                    (pending, &layer.settings.metrics);
                let reason = WithoutLock::StoreUnavailable;
                return ResponseState::unguarded(metrics, service, request, reason);
            }
            IdempotencyError::Store(error)
        }
        Acquisition::ShuttingDown => IdempotencyError::ShuttingDown,
    };
    ResponseState::refused(error)
}

fn process<S, R, C>(
    layer: &LayerParts<C>,
    held: HeldLock,
    pending: Pending<S, R>,
) -> ResponseState<S, R>
where
    R: CarryLock,
    S: Service<R>,
    S::Error: BoxableError,
{
    layer.settings.metrics.attempts.increment(1);
    let lock = held.lock_handle().clone();
    // Created before the rest of `pending` is destructured, and thus dropped after it: if the inner
    // service panics, user code is dropped before its lock is released.
    let mut running = Running::new(held, pending.request.interrupt(), layer.policies.clone());
    let Pending { mut service, mut request, .. } = pending;
    let span = tracing::debug_span!(
        "process",
        campanile.token = lock.token().get(),
        campanile.attempt = lock.attempt()
    );
    let lost = lock.lost();
    let result = span.in_scope(|| {
        running.run_handler(|| {
            request.set_lock(lock);
            service.call(request)
        })
    });
    match result {
        Ok(future) => ResponseState::Processing { future, running: Some(running), lost, span },
        Err(panicked) => {
            running.run_user_code(|| drop(service));
            handle_failure(layer, running, panicked)
        }
    }
}

fn handle_exhausted<S: Service<R>, R, C>(
    layer: &LayerParts<C>,
    mut lock: HeldLock,
    attempts: u32,
    give_ups: u32,
    last_error: Option<Box<str>>,
) -> ResponseState<S, R> {
    match layer.policies.exhausted {
        OnExhausted::GiveUp => {
            let given_up = Outcome::GivenUp(GivenUp::new(attempts, last_error));
            let settlement = Settlement::GiveUp { reason: "".into() };
            ResponseState::settle(lock, settlement, AfterSettle::Answer(given_up))
        }
        OnExhausted::ReturnLock => {
            lock.set_drop_failure(layer.policies.backoff.delay(give_ups), false, "".into());
            let key = lock.lock_handle().key().clone();
            let lock = ErrorLock::new(Some(lock));
            let exhausted = Exhausted { key, attempts, give_ups, last_error, lock };
            ResponseState::refused(IdempotencyError::Exhausted(exhausted))
        }
    }
}

fn wait_for_lock<S, R>(
    pending: Pending<S, R>,
    at_most: Duration,
    settled: Option<SettledFuture>,
) -> ResponseState<S, R>
where
    S: Service<R> + CloneableService,
{
    let waited_elsewhere = pending.waited_elsewhere || settled.is_none();
    let pending = Pending { _waited: settled.clone(), waited_elsewhere, ..pending };
    wait(pending, async move {
        let start = Instant::now();
        wait_at_most(settled, at_most).await;
        Some(start.elapsed())
    })
}

/// Compares a record whose key is COMPLETED with the record that has completed it.
fn cause_of_completed(
    record: Option<&Record>,
    details: Option<&Details>,
    completed_at: SystemTime,
) -> DuplicateCause {
    let Some(record) = record else { return DuplicateCause::Unknown };
    match (details.and_then(Details::coordinates), record.timestamp()) {
        (Some(at), _) if at == *record.coordinates() => DuplicateCause::Redelivery,
        (Some(_), _) => DuplicateCause::Repeat,
        (None, Some(Timestamp::CreateTime(written) | Timestamp::LogAppendTime(written)))
            if written > completed_at =>
        {
            DuplicateCause::Repeat
        }
        _ => DuplicateCause::Unknown,
    }
}

/// Releases a lock that was lost before its record's turn came, and then acquires it again. Until the
/// store has answered, the lost lock would be in the way. Waits no longer than for a call, because the
/// store may be unavailable: the request is then refused as locked.
pub(super) fn wait_for_release<S, R>(
    pending: Pending<S, R>,
    lost: HeldLock,
    ttl: Duration,
) -> ResponseState<S, R>
where
    S: Service<R> + CloneableService,
{
    let released = timeout(ttl / 6, lost.release());
    wait(pending, async move {
        // It does not matter whether the lock was still there.
        let _ = released.await;
        None
    })
}

/// Acquires the lock after this wait, which returns for how long it waited for another owner.
fn wait<S, R>(
    pending: Pending<S, R>,
    until: impl Future<Output = Option<Duration>> + Send + 'static,
) -> ResponseState<S, R>
where
    S: Service<R> + CloneableService,
{
    // A clone is not ready: the permit is returned with the service that was.
    let not_ready = pending.service.clone();
    let pending = Some(Pending { service: not_ready, ..pending });
    ResponseState::WaitingForLock { wait: Box::pin(until), pending }
}
