//! The task that runs the next records of a queue, one after the other.
//!
//! All user code runs here: decoders, key extractors, readiness, handlers. A record that blocks or
//! panics holds up only its own queue, which has to wait for the record anyway.
//!
//! While the store records the outcome of one record, the next record is started *ahead* of its
//! turn: its lock is acquired in the same round trip to the store, and its handler waits until the
//! previous record is processed. If the previous record is not processed after all, the lock is
//! released and no attempt is counted. After a duplicate, several records are started ahead, since
//! they are mostly duplicates as well; they are dropped as soon as a handler runs.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use futures_util::future::join_all;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::LOCK_RELEASE_TIMEOUT;
use super::assignment::Assignment;
use super::attempt::{Attempt, RecordOutcome};
use super::control::RunGate;
use super::reports::{Report, Reporter};
use super::span::RecordSpans;
use super::task::Task;
use super::waker::AttemptWaker;
use crate::routes::{ReadinessReporter, Route};
use crate::telemetry::TopicMetrics;

/// The time after which a run ends, as soon as the record in progress is finished. Queues that wait
/// because of the in-flight limit then get their turn.
const TIME_SLICE: Duration = Duration::from_millis(10);

/// The maximum number of records that are started ahead after duplicates. These records are probably
/// duplicates as well, and one round trip to the store answers all of them.
const MAX_DUPLICATE_LOOKAHEAD: usize = 16;

/// The next records of a queue, and everything that is needed to run them.
pub(super) struct Run {
    /// The records, at least one.
    pub(super) records: Vec<Record>,
    pub(super) route: Arc<dyn Route>,
    pub(super) assignment: Arc<Assignment>,
    pub(super) metrics: Arc<TopicMetrics>,
    /// Keeps the run from starting further records while it is set.
    pub(super) run_gate: Arc<RunGate>,
    pub(super) spans: Arc<RecordSpans>,
    pub(super) reporter: Reporter,
}

impl Run {
    /// Spawns the run. Dropping the task drops the attempts in progress, which then count as
    /// interrupted.
    pub(super) fn spawn(self, runtime: &Handle) -> Task<()> {
        let waker = AttemptWaker::new(self.reporter.reports.clone());
        Task::spawn_on(runtime, WithAttemptWaker { future: self.run(), waker })
    }

    async fn run(self) {
        let Self { records, route, assignment, metrics, run_gate, spans, reporter } = self;
        let Reporter { queue, reports } = &reporter;
        let since = Instant::now();
        let is_slice_over = || since.elapsed() >= TIME_SLICE;
        let is_stopped =
            || run_gate.is_paused() || assignment.is_paused() || assignment.is_stopped();
        // Suspension does not stop the first record: a suspended scheduler starts a run for that
        // record alone, as a probe of the store.
        let must_stop = || is_stopped() || run_gate.is_suspended();
        let attempt = |record, ahead| {
            let readiness_reporter = ReadinessReporter::new(*queue, reports.clone());
            Attempt::new(record, readiness_reporter, &spans, ahead)
        };
        let mut pending = VecDeque::from(records);
        let mut current = match pending.pop_front() {
            Some(first) if !is_stopped() => attempt(first, false),
            _ => return reports.send(Report::RunStopped { queue: *queue }),
        };
        // The time at which the turn of the current record has begun.
        let mut turn = since;
        let mut ahead = VecDeque::new();
        // The number of records to start ahead because the previous records were duplicates.
        let mut lookahead = 0;
        loop {
            let outcome = poll_fn(|cx| {
                if let Poll::Ready(outcome) = current.poll(cx, &*route) {
                    return Poll::Ready(outcome);
                }
                if current.is_processing() {
                    // The attempts ahead of their turn must not hold locks and permits for as long
                    // as a handler runs: timeouts and `max_hold` would expire before their turn, and
                    // this record may need a permit or a key that they hold.
                    lookahead = 0;
                    cancel_ahead(&mut ahead, &mut pending);
                }
                let limit = lookahead.max(usize::from(current.is_recording()));
                while ahead.len() < limit && !is_slice_over() && !must_stop() {
                    let Some(record) = pending.pop_front() else {
                        break;
                    };
                    ahead.push_back(attempt(record, true));
                }
                ahead.iter_mut().for_each(|next| next.poll_ahead(cx, &*route));
                Poll::Pending
            })
            .await;
            let now = Instant::now();
            metrics.record_attempt(outcome.error_type(), now - turn);
            turn = now;
            let is_slice_over = now - since >= TIME_SLICE;
            let RecordOutcome::Processed { outputs } = outcome else {
                cancel_ahead(&mut ahead, &mut pending);
                wait_for_lock_release(&pending, &assignment).await;
                return reporter.end_run(outcome);
            };
            lookahead = if current.is_duplicate() {
                (2 * lookahead).clamp(1, MAX_DUPLICATE_LOOKAHEAD)
            } else {
                0
            };
            let next = match ahead.pop_front() {
                None if !is_slice_over => pending.pop_front().map(|record| attempt(record, false)),
                next => next,
            };
            let Some(next) = next else {
                return reporter.end_run(RecordOutcome::Processed { outputs });
            };
            reports.send_lazily(Report::Processed { queue: *queue, outputs });
            if must_stop() {
                ahead.push_front(next);
                cancel_ahead(&mut ahead, &mut pending);
                wait_for_lock_release(&pending, &assignment).await;
                return reports.send(Report::RunStopped { queue: *queue });
            }
            if is_slice_over {
                // The next record is still run, since it may already have its lock.
                cancel_ahead(&mut ahead, &mut pending);
            }
            next.begin_turn();
            current = next;
        }
    }
}

/// Drops the attempts that are ahead of their turn, and puts their records back into `pending`.
fn cancel_ahead(ahead: &mut VecDeque<Attempt>, pending: &mut VecDeque<Record>) {
    while let Some(attempt) = ahead.pop_back() {
        pending.push_front(attempt.record().clone());
    }
}

/// If the partition is being released, waits until the locks of records that were dropped ahead of
/// their turn are released, so that the partition's next owner finds them free.
async fn wait_for_lock_release(records: &VecDeque<Record>, assignment: &Assignment) {
    if assignment.is_stopped() {
        let released =
            timeout(LOCK_RELEASE_TIMEOUT, join_all(records.iter().map(Record::lock_released)));
        // Boxed, because this future is a fourth of the task's size and few runs need it. A timeout
        // is logged by the drain.
        let _ = Box::pin(released).await;
    }
}

pin_project! {
    /// A run that is polled and woken through its own waker.
    struct WithAttemptWaker<F> {
        #[pin]
        future: F,
        waker: Arc<AttemptWaker>,
    }
}

impl<F: Future> Future for WithAttemptWaker<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.waker.poll(cx, |cx| this.future.poll(cx))
    }
}
