//! The task that runs the next records of a queue, one after the other.
//!
//! All user code runs here: decoders, key extractors, readiness, handlers. A record that blocks or
//! panics holds up its own queue only, which has to wait for it anyway.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::assignment::{Assignment, AssignmentId};
use super::attempt::{Outcome, attempt};
use super::control::Halt;
use super::reports::{Report, Reporter, Reports};
use super::task::Task;
use super::waker::AttemptWaker;
use crate::order::Order;
use crate::routes::{Readiness, Route};

/// A run ends after the record at which it has taken this long, so that queues which wait for a place
/// in flight get their turn.
const QUANTUM: Duration = Duration::from_millis(10);

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
