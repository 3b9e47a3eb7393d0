//! The task that runs the next records of a queue, one after the other.
//!
//! All user code runs here: decoders, key extractors, readiness, handlers. A record that blocks or
//! panics holds up its own queue only, which has to wait for it anyway.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{BoxError, Output, Record};
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::Span;

use super::assignment::{Assignment, AssignmentId};
use super::control::Halt;
use super::reports::{Report, Reporter, Reports};
use super::span;
use super::task::Task;
use super::waker::AttemptWaker;
use crate::dead_letter::Unburied;
use crate::error::panic_text;
use crate::flood::Passage;
use crate::order::Order;
use crate::routes::{Readiness, Route, RouteError, RouteFuture};

/// A run ends after the record at which it has taken this long, so that queues which wait for a place
/// in flight get their turn.
const QUANTUM: Duration = Duration::from_millis(10);

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

/// The next records of a queue, and what they need.
pub(super) struct Run {
    /// At least one.
    pub(super) records: Vec<Record>,
    pub(super) route: Arc<dyn Route>,
    pub(super) assignment: Arc<Assignment>,
    /// Set while no further record may be started.
    pub(super) halt: Arc<Halt>,
    pub(super) group: Arc<str>,
    pub(super) reporter: Reporter,
}

impl Run {
    /// Starts the run. Dropping the task drops the record at work as interrupted.
    pub(super) fn spawn(self, runtime: &Handle) -> Task<()> {
        let waker = AttemptWaker::new(self.reporter.reports.clone());
        Task::spawn_on(runtime, Woken { future: self.work(), waker })
    }

    async fn work(self) {
        let Self { records, route, assignment, halt, group, reporter } = self;
        let start = Instant::now();
        let last = records.len() - 1;
        for (index, record) in records.into_iter().enumerate() {
            let queue = reporter.queue;
            // A suspended scheduler has started this run for its first record, as a probe of the store.
            let halted = halt.is_paused() || (index > 0 && halt.is_suspended());
            if halted || assignment.is_stopped() {
                return reporter.reports.send(Report::Stopped { queue });
            }
            let readiness = Readiness::new(queue, reporter.reports.clone());
            match attempt(&*route, record, readiness, &group).await {
                Outcome::Processed { outputs } if index < last && start.elapsed() < QUANTUM => {
                    reporter.reports.send_lazily(Report::Processed { queue, outputs });
                }
                outcome => return reporter.ended(outcome),
            }
        }
    }
}

/// Calls the service with a record. Never panics.
async fn attempt(route: &dyn Route, record: Record, readiness: Readiness, group: &str) -> Outcome {
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

pin_project! {
    /// A run whose polls and wake-ups go through its own waker.
    struct Woken<F> {
        #[pin]
        future: F,
        waker: Arc<AttemptWaker>,
    }
}

impl<F: Future> Future for Woken<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.waker.poll(cx, |cx| this.future.poll(cx))
    }
}

/// Runs the order's extractor over records, in a task of its own.
pub(super) fn spawn_keying(
    runtime: &Handle,
    order: Arc<Order>,
    records: Vec<Record>,
    assignment: AssignmentId,
    reports: Arc<Reports>,
) -> Task<()> {
    Task::spawn_on(runtime, async move {
        let keys = records.iter().map(|record| order.extract(record)).collect();
        reports.send(Report::Keyed { assignment, keys });
    })
}
