//! One call of the service with one record.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, ready};
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

/// Calls the service with a record. Never panics.
pub(super) async fn attempt(
    route: &dyn Route,
    record: Record,
    readiness: Readiness,
    group: &str,
) -> Outcome {
    let span = span::record(&record, group);
    let mut future: Option<RouteFuture> = None;
    // Declared after the future, and so dropped before it.
    let mut interrupted = Interrupted { record: Some(record.clone()), span: span.clone() };
    let mut request = Some((record, readiness));
    let outcome = poll_fn(|cx| {
        let _entered = span.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Some((record, readiness)) = request.take() {
                future = Some(route.call(record, readiness));
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
        polled.unwrap_or_else(|panic| Poll::Ready(Outcome::Panicked(panic_text(panic))))
    })
    .await;
    let _entered = span.enter();
    // Before the end is reported: what the future holds is free when the next record starts.
    let dropped = catch_unwind(AssertUnwindSafe(|| future = None));
    interrupted.record = None;
    let outcome = match dropped {
        Ok(()) => outcome,
        Err(panic) => Outcome::Panicked(format!("a drop panicked: {}", panic_text(panic))),
    };
    if !matches!(outcome, Outcome::Processed { .. }) {
        span.record("otel.status_code", "ERROR");
    }
    outcome
}

/// Says, when it is dropped before the attempt has ended, that a revoke, a shutdown or the end of the
/// runtime has dropped it: the layer then releases the lock and counts no failed attempt.
struct Interrupted {
    /// `None` once the attempt has ended.
    record: Option<Record>,
    span: Span,
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if let Some(record) = &self.record {
            let _entered = self.span.enter();
            record.set_interrupted();
        }
    }
}
