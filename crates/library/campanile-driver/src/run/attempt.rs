//! An attempt: one call of the service with one record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, ready};

use campanile_core::Record;
use campanile_core::telemetry::{AttributeValue, ErrorType};
use tracing::Span;

use crate::config::DriverConfig;
use crate::error::panic_text;
use crate::reports::RunOutcome;
use crate::routes::{ReadinessReporter, Route, RouteError, RouteFuture};
use crate::span::attempt_span;

/// One call of the service with one record.
///
/// If the attempt is dropped before it has ended, the record counts as interrupted: the layer
/// releases the lock and does not count a failed attempt.
pub(crate) struct Attempt {
    record: Record,
    /// Taken when the service is called.
    readiness_reporter: Option<ReadinessReporter>,
    /// Present while the call is in progress.
    future: Option<RouteFuture>,
    /// The outcome, if the attempt has ended ahead of its turn.
    early_outcome: Option<RunOutcome>,
    span: Span,
}

impl Attempt {
    /// Creates an attempt. With `ahead`, the attempt may be polled ahead of its turn.
    pub(super) fn new(
        record: Record,
        readiness_reporter: ReadinessReporter,
        config: &DriverConfig,
        ahead: bool,
    ) -> Self {
        record.attempt().start(ahead);
        let span = attempt_span(config.span_level, &config.group, &record);
        Self {
            record,
            readiness_reporter: Some(readiness_reporter),
            future: None,
            early_outcome: None,
            span,
        }
    }

    /// Checks whether the handler has succeeded and only its completion has to be recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.record.attempt().is_recording()
    }

    pub(crate) fn is_duplicate(&self) -> bool {
        self.record.attempt().is_duplicate()
    }

    /// Checks whether the record may take long: its handler is running, it waits for its lock, or
    /// middleware may call the layer again.
    pub(crate) fn is_processing(&self) -> bool {
        self.record.attempt().is_processing()
    }

    /// Polls the attempt ahead of its turn. The layer acquires the lock, but the handler waits.
    pub(crate) fn poll_ahead(&mut self, cx: &mut Context<'_>, route: &dyn Route) {
        if self.early_outcome.is_none()
            && let Poll::Ready(outcome) = self.poll(cx, route)
        {
            self.early_outcome = Some(outcome);
        }
    }

    /// Checks whether the attempt will end as a duplicate, if it was polled ahead of its turn and that is
    /// known.
    pub(crate) fn is_duplicate_ahead(&self) -> Option<bool> {
        match &self.early_outcome {
            Some(outcome) => Some(matches!(outcome, RunOutcome::Processed { .. })),
            None => self.record.attempt().is_duplicate_ahead(),
        }
    }

    /// Begins the record's turn, so that the handler may run.
    pub(crate) fn begin_turn(&self) {
        self.record.attempt().begin_turn();
    }

    /// Polls the attempt in its turn. Never panics; a panic of the service becomes the outcome.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, route: &dyn Route) -> Poll<RunOutcome> {
        let Self { record, readiness_reporter, future, early_outcome, span } = self;
        if let Some(outcome) = early_outcome.take() {
            return Poll::Ready(outcome);
        }
        let _entered = span.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Some(readiness_reporter) = readiness_reporter.take() {
                *future = Some(route.call(record.clone(), readiness_reporter));
            }
            let future = future.as_mut().expect("set by the first poll");
            let response = ready!(future.as_mut().poll(cx));
            Poll::Ready(match response {
                Ok(Ok(item)) => RunOutcome::Processed { item },
                Ok(Err(error)) => RunOutcome::InvalidResponse(error),
                Err(RouteError::Failed(error)) => RunOutcome::Failed(error),
                Err(RouteError::ServiceFailed(error)) => RunOutcome::ServiceFailed(error),
            })
        }));
        let outcome = match polled {
            Ok(polled) => ready!(polled),
            Err(panic) => RunOutcome::Panicked(panic_text(panic)),
        };
        // Drop the future before the outcome is reported, so that its resources are free when the next
        // record starts.
        let future = future.take();
        let outcome = match catch_unwind(AssertUnwindSafe(|| drop(future))) {
            Ok(()) => outcome,
            Err(panic) => {
                RunOutcome::Panicked(format!("dropping the future panicked: {}", panic_text(panic)))
            }
        };
        if record.attempt().is_duplicate() {
            span.record("campanile.duplicate", true);
        }
        if let Some(error_type) = outcome.error_type() {
            span.record("error.type", ErrorType::ATTRIBUTE.values[error_type.index()]);
            span.record("otel.status_code", "ERROR");
        }
        Poll::Ready(outcome)
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }
}

/// Marks the record as interrupted if the call is in progress. Never panics.
impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            let _entered = self.span.enter();
            self.record.attempt().set_interrupted();
            // If a panic drops several attempts, a panic here would abort the process. The panic hook
            // reports it.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        }
    }
}
