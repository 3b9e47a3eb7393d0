//! The task that runs the next records of a queue, one after the other.
//!
//! All user code runs here: decoders, key extractors, readiness, handlers. A record that blocks or
//! panics holds up only its own queue, which has to wait for the record anyway.
//!
//! While the store records the outcome of one record, the next record is started *ahead* of its
//! turn: its lock is acquired in the same round trip to the store, and its handler waits until the
//! previous record is processed. If the previous record is not processed after all, the lock is
//! released and no attempt is counted.
//!
//! After a duplicate, several records are started together, since they are mostly duplicates as well.
//! Before a handler runs, the records behind its own are dropped, and their locks are released. Otherwise
//! a handler that kills its process would cost each of them an attempt.

mod attempt;
mod task;
#[cfg(test)]
mod tests;
mod waker;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use futures_util::FutureExt;
use futures_util::future::join_all;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use self::attempt::Attempt;
pub(crate) use self::task::Task;
use self::waker::AttemptWaker;
use crate::config::DriverConfig;
use crate::control::RunGate;
use crate::reports::{Report, Reporter, RunOutcome};
use crate::routes::{ReadinessReporter, Route};
use crate::source::Assignment;
use crate::telemetry::TopicMetrics;

/// How long to wait until the locks of dropped futures are released, so that the next owner finds them
/// free. If the store is unavailable, the locks expire by themselves.
pub(crate) const LOCK_RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which a run ends, as soon as the record in progress is finished. Queues that wait
/// because of the in-flight limit then get their turn.
const TIME_SLICE: Duration = Duration::from_millis(10);

/// The maximum number of records that are started together after duplicates. These records are probably
/// duplicates as well, and one round trip to the store answers all of them.
const MAX_GROUP_LEN: usize = 16;

/// The next records of a queue, and everything that is needed to run them.
pub(crate) struct Run {
    /// The records, at least one.
    pub(crate) records: Vec<Record>,
    pub(crate) route: Arc<dyn Route>,
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) metrics: Arc<TopicMetrics>,
    /// Keeps the run from starting further records while it is set.
    pub(crate) run_gate: Arc<RunGate>,
    pub(crate) config: Arc<DriverConfig>,
    pub(crate) reporter: Reporter,
}

impl Run {
    /// Spawns the run. Dropping the task drops the attempts in progress, which then count as
    /// interrupted.
    pub(crate) fn spawn(self, runtime: &Handle) -> Task<()> {
        let waker = AttemptWaker::new(self.reporter.reports.clone());
        Task::spawn_on(runtime, WithAttemptWaker { future: self.run(), waker })
    }

    async fn run(self) {
        let Self { records, route, assignment, metrics, run_gate, config, reporter } = self;
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
            Attempt::new(record, readiness_reporter, &config, ahead)
        };
        let mut pending = VecDeque::from(records);
        let mut current = match pending.pop_front() {
            Some(first) if !is_stopped() => attempt(first, false),
            _ => return reports.send(Report::RunStopped { queue: *queue }),
        };
        // The time at which the turn of the current record has begun.
        let mut turn = since;
        let mut ahead = VecDeque::new();
        // The number of records to start together.
        let mut group_len = 1;
        loop {
            let outcome = poll_fn(|cx| {
                if let Poll::Ready(outcome) = current.poll(cx, &*route) {
                    return Poll::Ready(outcome);
                }
                if current.is_processing() {
                    // An attempt ahead of its turn must not hold its lock and permits for as long as a
                    // handler runs: timeouts and `max_hold` would expire before its turn, and this
                    // record may need a permit or a key that it holds.
                    cancel_ahead(&mut ahead, &mut pending);
                }
                if current.is_recording() && ahead.is_empty() && !is_slice_over() && !must_stop() {
                    ahead.extend(pending.pop_front().map(|record| attempt(record, true)));
                }
                ahead.iter_mut().for_each(|next| next.poll_ahead(cx, &*route));
                Poll::Pending
            })
            .await;
            let now = Instant::now();
            metrics.record_attempt(outcome.error_type(), now - turn);
            turn = now;
            let is_slice_over = now - since >= TIME_SLICE;
            let RunOutcome::Processed { item } = outcome else {
                cancel_ahead(&mut ahead, &mut pending);
                if assignment.is_stopped() {
                    wait_for_lock_release(&pending).await;
                }
                return reporter.end_run(outcome);
            };
            group_len = if current.is_duplicate() { MAX_GROUP_LEN.min(2 * group_len) } else { 1 };
            if ahead.is_empty() && !is_slice_over {
                let len = group_len.min(pending.len());
                ahead.extend(pending.drain(..len).map(|record| attempt(record, len > 1)));
            }
            let Some(mut next) = ahead.pop_front() else {
                return reporter.end_run(RunOutcome::Processed { item });
            };
            reports.send_lazily(Report::Processed { queue: *queue, item });
            if !ahead.is_empty() && !is_duplicate(&mut next, &mut ahead, &*route).await {
                cancel_ahead(&mut ahead, &mut pending);
                wait_for_lock_release(&pending).await;
            }
            if must_stop() {
                ahead.push_front(next);
                cancel_ahead(&mut ahead, &mut pending);
                if assignment.is_stopped() {
                    wait_for_lock_release(&pending).await;
                }
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

/// Waits until it is known whether the next record is a duplicate. As long as it is not known while a
/// later record waits for its turn, the answer is no: the next record may need a permit that the later
/// one holds.
async fn is_duplicate(
    next: &mut Attempt,
    ahead: &mut VecDeque<Attempt>,
    route: &dyn Route,
) -> bool {
    if let Some(is_duplicate) = next.is_duplicate_ahead() {
        return is_duplicate;
    }
    let mut attempts: Vec<_> = iter::once(next)
        .chain(ahead)
        .map(|attempt| (attempt.record().attempt().awaits_turn(), attempt))
        .collect();
    let is_duplicate = poll_fn(|cx| {
        let mut is_later_waiting = false;
        let mut is_duplicate = None;
        for (index, (awaits_turn, attempt)) in attempts.iter_mut().enumerate() {
            attempt.poll_ahead(cx, route);
            // Middleware may poll the layer in another task.
            let _ = awaits_turn.poll_unpin(cx);
            let polled = attempt.is_duplicate_ahead();
            match index {
                0 => is_duplicate = polled,
                _ => is_later_waiting |= polled == Some(false),
            }
        }
        match is_duplicate.or(is_later_waiting.then_some(false)) {
            Some(is_duplicate) => Poll::Ready(is_duplicate),
            None => Poll::Pending,
        }
    });
    // Boxed, because it is large and few records need it.
    Box::pin(is_duplicate).await
}

/// Waits until the locks of records that were dropped ahead of their turn are released.
async fn wait_for_lock_release(records: &VecDeque<Record>) {
    let released = timeout(
        LOCK_RELEASE_TIMEOUT,
        join_all(records.iter().map(|record| record.attempt().lock_released())),
    );
    // Boxed, because this future is a fourth of the task's size and few runs need it. If the partition
    // is being released, a timeout is logged by the drain.
    let _ = Box::pin(released).await;
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
