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
        let Self { records, route, assignment, run_gate, spans, reporter } = self;
        let Reporter { queue, reports } = &reporter;
        let since = Instant::now();
        let is_slice_over = || since.elapsed() >= TIME_SLICE;
        let is_stopped = || run_gate.is_paused() || assignment.is_stopped();
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
                None if !is_slice_over() => {
                    pending.pop_front().map(|record| attempt(record, false))
                }
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
            if is_slice_over() {
                // The next record is still run, since it may already have its lock.
                cancel_ahead(&mut ahead, &mut pending);
            }
            next.begin_turn();
            current = next;
        }
    }
}

/// Drops the attempts that are ahead of their turn, and returns their records to `pending`.
fn cancel_ahead(ahead: &mut VecDeque<Attempt>, pending: &mut VecDeque<Record>) {
    while let Some(attempt) = ahead.pop_back() {
        pending.push_front(attempt.record().clone());
    }
}

/// If the partition is being released, waits until the locks of records that were dropped ahead of
/// their turn are released, so that the partition's next owner finds them free.
async fn wait_for_lock_release(records: &VecDeque<Record>, assignment: &Assignment) {
    if assignment.is_stopped() {
        let released = timeout(LOCK_RELEASE_TIMEOUT, join_all(records.iter().map(Record::let_go)));
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use campanile_core::BoxError;
    use futures_util::FutureExt;
    use futures_util::future::poll_fn;
    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;
    use crate::driver::{AssignmentId, DriverControl, DriverStatus, QueueId, Reports, Usage};
    use crate::routes::{RouteError, RouteFuture};

    /// A route in place of an idempotency layer. The outcome of a call is being recorded until the test
    /// ends the call.
    #[derive(Default)]
    struct FakeLayer {
        calls: Mutex<Vec<Call>>,
        /// Records below this offset are duplicates.
        duplicates: i64,
        /// The record with this offset is processed first.
        slow: Option<i64>,
    }

    struct Call {
        record: Record,
        steps: mpsc::UnboundedSender<Step>,
    }

    enum Step {
        /// The handler runs, or the layer returns an error and is about to be called again.
        Processes,
        Ends(Result<(), BoxError>),
    }

    impl Route for FakeLayer {
        fn call(&self, record: Record, _: ReadinessReporter) -> RouteFuture {
            let (steps, mut next) = mpsc::unbounded_channel();
            let interrupt = record.interrupt();
            let is_duplicate = record.offset() < self.duplicates;
            let is_slow = Some(record.offset()) == self.slow;
            self.calls.lock().unwrap().push(Call { record, steps });
            Box::pin(async move {
                if let Some(turn) = interrupt.turn() {
                    turn.await;
                }
                if is_duplicate {
                    yield_now().await;
                    interrupt.set_duplicate();
                    return Ok(Ok(Vec::new()));
                }
                match is_slow {
                    true => interrupt.record().set_processing(),
                    false => interrupt.set_recording(),
                }
                loop {
                    match next.recv().await.expect("the test ends the call") {
                        Step::Processes => interrupt.record().set_processing(),
                        Step::Ends(ended) => {
                            return ended.map(|()| Ok(Vec::new())).map_err(RouteError::Failed);
                        }
                    }
                }
            })
        }
    }

    impl FakeLayer {
        fn calls(&self) -> usize {
            self.calls.lock().unwrap().len()
        }

        fn record(&self, call: usize) -> Record {
            self.calls.lock().unwrap()[call].record.clone()
        }

        fn step(&self, call: usize, step: Step) {
            assert!(self.calls.lock().unwrap()[call].steps.send(step).is_ok());
        }

        fn end(&self, call: usize, result: Result<(), BoxError>) {
            self.step(call, Step::Ends(result));
        }
    }

    struct TestRun {
        route: Arc<FakeLayer>,
        assignment: Arc<Assignment>,
        reports: Arc<Reports>,
        _task: Task<()>,
    }

    /// Starts a run of two records that are not duplicates.
    async fn start_run() -> TestRun {
        start_run_of(2, FakeLayer::default()).await
    }

    /// Starts a run of this number of records.
    async fn start_run_of(records: i64, route: FakeLayer) -> TestRun {
        let total: Arc<Usage> = Arc::default();
        let assignment = Assignment::new(AssignmentId(0), "t".into(), 0, None, total);
        let (route, assignment) = (Arc::new(route), Arc::new(assignment));
        let reports = Arc::new(Reports::default());
        let record = |offset| Record::builder("t", 0, offset).build();
        let run = Run {
            records: (0..records).map(record).collect(),
            route: route.clone(),
            assignment: assignment.clone(),
            run_gate: DriverControl::new(DriverStatus::new(Duration::MAX)).run_gate(),
            spans: Arc::new(RecordSpans { group: "g".into(), level: tracing::Level::DEBUG }),
            reporter: Reporter { queue: QueueId::default(), reports: reports.clone() },
        };
        let task = run.spawn(&Handle::current());
        let test = TestRun { route, assignment, reports, _task: task };
        test.settle().await;
        test
    }

    impl TestRun {
        async fn settle(&self) {
            for _ in 0..8 {
                yield_now().await;
            }
        }

        fn take_reports(&self) -> Vec<Report> {
            let mut reported = Vec::new();
            poll_fn(|cx| {
                self.reports.take(cx, &mut reported);
                Poll::Ready(())
            })
            .now_or_never();
            reported
        }
    }

    #[tokio::test(start_paused = true)]
    async fn next_record_starts_ahead_while_the_first_is_recorded() {
        let test = start_run().await;
        assert_eq!(test.route.calls(), 2);
        assert!(test.route.record(0).is_recording());
        assert!(test.route.record(1).is_ahead());
        test.route.end(0, Ok(()));
        test.settle().await;
        assert!(test.route.record(1).is_recording());
        assert!(matches!(test.take_reports()[..], [Report::Processed { .. }]));
        test.route.end(1, Ok(()));
        test.settle().await;
        let ended = test.take_reports();
        assert!(matches!(
            ended[..],
            [Report::RunEnded { outcome: RecordOutcome::Processed { .. }, .. }]
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn next_record_is_dropped_if_the_first_is_not_recorded() {
        let test = start_run().await;
        test.route.end(0, Err("the lock is lost".into()));
        test.settle().await;
        let next = test.route.record(1);
        assert!(next.is_ahead() && next.interrupt().is_set());
        let ended = test.take_reports();
        assert!(matches!(ended[..], [Report::RunEnded { outcome: RecordOutcome::Failed(_), .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn next_record_is_dropped_if_its_partition_is_stopped() {
        let test = start_run().await;
        test.assignment.stop();
        test.route.end(0, Ok(()));
        test.settle().await;
        let next = test.route.record(1);
        assert!(next.is_ahead() && next.interrupt().is_set());
        let ended = test.take_reports();
        assert!(matches!(ended[..], [Report::Processed { .. }, Report::RunStopped { .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn records_after_duplicates_are_started_together() {
        let test = start_run_of(64, FakeLayer { duplicates: 40, ..FakeLayer::default() }).await;
        for _ in 0..10 {
            test.settle().await;
        }
        // The duplicates, the first record that is not a duplicate, and the records that were started
        // together with the last duplicates.
        let calls = test.route.calls();
        assert!(calls > 41 && calls <= 41 + MAX_DUPLICATE_LOOKAHEAD, "{calls}");
        assert!(test.route.record(40).is_recording());
        assert!((41..calls).all(|call| test.route.record(call).is_ahead()));
        assert_eq!(test.take_reports().len(), 40);
        test.route.end(40, Err("refused".into()));
        test.settle().await;
        assert!((41..calls).all(|call| test.route.record(call).interrupt().is_set()));
        let ended = test.take_reports();
        assert!(matches!(ended[..], [Report::RunEnded { outcome: RecordOutcome::Failed(_), .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn no_record_is_ahead_while_a_handler_runs() {
        let route = FakeLayer { duplicates: 40, slow: Some(40), ..FakeLayer::default() };
        let test = start_run_of(64, route).await;
        for _ in 0..10 {
            test.settle().await;
        }
        let calls = test.route.calls();
        assert!(calls > 41, "{calls}");
        assert!((41..calls).all(|call| test.route.record(call).interrupt().is_set()));
        test.route.end(40, Ok(()));
        test.settle().await;
        assert_eq!(test.route.record(calls).offset(), 41);
        assert!(test.route.record(calls).is_recording());
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_records_are_restarted_in_order() {
        let test = start_run_of(4, FakeLayer::default()).await;
        assert_eq!(test.route.calls(), 2);
        // As if a retry were about to call the layer again.
        test.route.step(0, Step::Processes);
        test.settle().await;
        assert!(test.route.record(1).interrupt().is_set());
        test.route.end(0, Ok(()));
        test.settle().await;
        let offsets: Vec<_> = (0..4).map(|call| test.route.record(call).offset()).collect();
        assert_eq!(offsets, [0, 1, 1, 2]);
        assert!(test.route.record(2).is_recording() && test.route.record(3).is_ahead());
    }
}
