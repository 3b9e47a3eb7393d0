//! One call of the service with one record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{BoxError, Output, Record};
use tracing::Span;

use super::span;
use crate::dead_letter::Unburied;
use crate::error::panic_text;
use crate::flood::Passage;
use crate::routes::{Readiness, Route, RouteError, RouteFuture};

/// How the work on a record ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The service has answered `Ok`.
    Processed { outputs: Vec<Output> },
    /// The service has answered `Ok`, but its outputs are not known.
    Unsendable(BoxError),
    /// The service has answered with an error.
    Failed(BoxError),
    /// The service, or the drop of its future, has panicked.
    Panicked(String),
    /// The service will never be ready again.
    Unready(BoxError),
    /// The record is given up, and that is recorded.
    Skipped,
    /// The record's dead letter is published, and that is recorded.
    DeadLettered(Passage),
    /// The record's dead letter is not published, or that is not recorded.
    NotDeadLettered(Unburied),
    /// A copy of the record is in a retry topic.
    Deferred,
    /// No copy is; the record is tried again after this time, or after the driver's own backoff.
    NotDeferred(Option<Duration>),
    /// The consumer stops at the record, whose lock is released.
    Left,
    /// The consumer is paused at the record, whose lock is released.
    Held,
}

/// One call of the service with one record. Dropped before it has ended, the record counts as
/// interrupted: the layer then releases the lock and counts no failed attempt.
pub(super) struct Attempt {
    record: Record,
    /// Taken by the call.
    readiness: Option<Readiness>,
    /// Present while the call is in progress.
    future: Option<RouteFuture>,
    /// How it ended, if it has ended ahead of its turn.
    ended: Option<Outcome>,
    span: Span,
}

impl Attempt {
    /// Makes an attempt, which may be polled `ahead` of its turn.
    pub(super) fn new(record: Record, readiness: Readiness, group: &str, ahead: bool) -> Self {
        record.start(ahead);
        let span = span::record(&record, group);
        Self { record, readiness: Some(readiness), future: None, ended: None, span }
    }

    /// Returns whether the handler has succeeded, and all that is left is to record that.
    pub(super) fn is_recording(&self) -> bool {
        self.record.is_recording()
    }

    /// Returns whether the record was a duplicate.
    pub(super) fn is_duplicate(&self) -> bool {
        self.record.is_duplicate()
    }

    /// Returns whether a layer has answered with an error, after which middleware may call it again.
    pub(super) fn has_failed(&self) -> bool {
        self.record.has_failed()
    }

    /// Polls it before its turn. The layer acquires the lock, but the handler waits.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>, route: &dyn Route) {
        if self.ended.is_none()
            && let Poll::Ready(outcome) = self.poll(cx, route)
        {
            self.ended = Some(outcome);
        }
    }

    /// Lets the handler run.
    pub(super) fn begin_turn(&self) {
        self.record.begin_turn();
    }

    /// Never panics.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, route: &dyn Route) -> Poll<Outcome> {
        let Self { record, readiness, future, ended, span } = self;
        if let Some(outcome) = ended.take() {
            return Poll::Ready(outcome);
        }
        let _entered = span.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Some(readiness) = readiness.take() {
                *future = Some(route.call(record.clone(), readiness));
            }
            let future = future.as_mut().expect("it was called just now, or before");
            let answer = ready!(future.as_mut().poll(cx));
            Poll::Ready(match answer {
                Ok(Ok(outputs)) => Outcome::Processed { outputs },
                Ok(Err(error)) => Outcome::Unsendable(error),
                Err(RouteError::Failed(error)) => Outcome::Failed(error),
                Err(RouteError::Unready(error)) => Outcome::Unready(error),
            })
        }));
        let outcome = match polled {
            Ok(polled) => ready!(polled),
            Err(panic) => Outcome::Panicked(panic_text(panic)),
        };
        // Before the end is reported: what the future holds is free when the next record starts.
        let future = future.take();
        let outcome = match catch_unwind(AssertUnwindSafe(|| drop(future))) {
            Ok(()) => outcome,
            Err(panic) => Outcome::Panicked(format!("a drop panicked: {}", panic_text(panic))),
        };
        if !matches!(outcome, Outcome::Processed { .. }) {
            span.record("otel.status_code", "ERROR");
        }
        Poll::Ready(outcome)
    }

    /// Returns its record.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }
}

/// Never panics.
impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            let _entered = self.span.enter();
            self.record.set_interrupted();
            // Two attempts may be dropped by one panic. The panic hook reports this one.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        }
    }
}
