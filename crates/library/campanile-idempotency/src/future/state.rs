//! The states of a response future.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use campanile_core::{LostFuture, Outcome, Turn, WithoutLock};
use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use tower_service::Service;
use tracing::Span;

use super::Pending;
use super::running::Running;
use crate::error::IdempotencyError;
use crate::keeper::{Acquisition, HeldLock, Settlement, Settling};
use crate::telemetry::LayerMetrics;

/// A wait; the output is its duration, if it was for another owner.
pub(super) type Wait = Pin<Box<dyn Future<Output = Option<Duration>> + Send>>;

pin_project! {
    #[project = ResponseStateProj]
    pub(super) enum ResponseState<S, R>
    where
        S: Service<R>,
    {
        // The request failed; contains the error until it is returned.
        Refused { error: Option<IdempotencyError> },
        // The keeper acquires the lock; the inner service is ready.
        Acquiring {
            acquiring: oneshot::Receiver<Acquisition>,
            pending: Option<Pending<S, R>>,
            span: Span,
        },
        // The record was started ahead of its turn and waits for it.
        WaitingForTurn { turn: Turn, ahead: Option<AheadOfTurn<S, R>> },
        // Another owner holds the lock. The inner service is not kept ready. Boxed, so that
        // requests that never wait do not pay for it.
        WaitingForLock { wait: Wait, pending: Option<Pending<S, R>> },
        // The wait is over; the inner service becomes ready again.
        Readying { pending: Option<Pending<S, R>> },
        // The inner service runs under the lock. Fields are dropped in declaration order, so user
        // code is dropped first.
        Processing {
            #[pin]
            future: S::Future,
            running: Option<Running>,
            lost: LostFuture,
            span: Span,
        },
        // The inner service runs without a lock.
        WithoutLock {
            #[pin]
            future: S::Future,
            reason: WithoutLock,
        },
        // The keeper settles the lock.
        Settling {
            settling: Settling,
            after: Option<AfterSettle<S::Response>>,
            span: Span,
        },
        // The outcome is known and needs no command.
        Answered { outcome: Option<Outcome<S::Response>> },
    }
}

/// A request for a record that was started ahead of its turn.
pub(super) enum AheadOfTurn<S, R> {
    /// The keeper's answer is handled.
    Acquired(Acquisition, Pending<S, R>),
    /// The inner service is called without a lock.
    WithoutLock(S, R, WithoutLock),
}

impl<S, R> AheadOfTurn<S, R> {
    pub(super) fn service(&mut self) -> &mut S {
        match self {
            Self::Acquired(_, pending) => &mut pending.service,
            Self::WithoutLock(service, ..) => service,
        }
    }
}

/// The response after the store has answered the settlement.
pub(super) enum AfterSettle<T> {
    /// This outcome, if the store confirms it.
    Answer(Outcome<T>),
    /// This error, whatever the store answers.
    Error(IdempotencyError),
}

impl<S: Service<R>, R> ResponseState<S, R> {
    pub(super) fn refused(error: IdempotencyError) -> Self {
        Self::Refused { error: Some(error) }
    }

    /// Waits for the turn without the permit that a ready service may hold, because the previous
    /// record may need the permit.
    pub(super) fn wait_for_turn(turn: Turn, answer: Acquisition, pending: Pending<S, R>) -> Self
    where
        S: Clone,
    {
        let Pending { service, request, key, fingerprint, _waited, waited_elsewhere } = pending;
        let not_ready = service.clone();
        let pending =
            Pending { service: not_ready, request, key, fingerprint, _waited, waited_elsewhere };
        drop(service);
        Self::WaitingForTurn { turn, ahead: Some(AheadOfTurn::Acquired(answer, pending)) }
    }

    pub(super) fn unguarded(
        metrics: &LayerMetrics,
        mut service: S,
        request: R,
        reason: WithoutLock,
    ) -> Self {
        metrics.count_unguarded_run(reason);
        Self::WithoutLock { future: service.call(request), reason }
    }

    pub(super) fn answer(outcome: Outcome<S::Response>) -> Self {
        Self::Answered { outcome: Some(outcome) }
    }

    pub(super) fn settle(
        held: HeldLock,
        settlement: Settlement,
        after: AfterSettle<S::Response>,
    ) -> Self {
        let span = match settlement {
            Settlement::Complete { .. } => tracing::debug_span!("complete"),
            Settlement::Fail { .. } => tracing::debug_span!("fail"),
            Settlement::Release { .. } => tracing::debug_span!("release"),
            Settlement::GiveUp { .. } => tracing::debug_span!("give_up"),
            Settlement::Completed(_) | Settlement::Expire => Span::none(),
        };
        Self::Settling { settling: held.settle(settlement), after: Some(after), span }
    }

    /// Checks whether the handler is running, or the request waits for its lock or for the inner
    /// service, or for its turn.
    pub(super) fn is_processing(&self) -> bool {
        match self {
            Self::WaitingForTurn { .. }
            | Self::WaitingForLock { .. }
            | Self::Readying { .. }
            | Self::Processing { .. }
            | Self::WithoutLock { .. } => true,
            Self::Refused { .. }
            | Self::Acquiring { .. }
            | Self::Settling { .. }
            | Self::Answered { .. } => false,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "Refused",
            Self::Acquiring { .. } => "Acquiring",
            Self::WaitingForTurn { .. } => "WaitingForTurn",
            Self::WaitingForLock { .. } => "WaitingForLock",
            Self::Readying { .. } => "Readying",
            Self::Processing { .. } => "Processing",
            Self::WithoutLock { .. } => "WithoutLock",
            Self::Settling { .. } => "Settling",
            Self::Answered { .. } => "Answered",
        }
    }
}
