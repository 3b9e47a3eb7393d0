//! The task that runs the next records of a queue, one after the other.
//!
//! All user code runs here: decoders, key extractors, readiness, handlers. A record that blocks or
//! panics holds up its own queue only, which has to wait for it anyway.
//!
//! While one record's outcome is being recorded, the next one is started *ahead* of its turn: its lock
//! is acquired with the same trip to the store, and its handler waits until the record before it is
//! processed. If that is not, the lock is released, and no attempt is counted. Behind duplicates several
//! are started ahead, since these are mostly duplicates as well.

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

use super::RELEASE;
use super::assignment::{Assignment, AssignmentId};
use super::attempt::{Attempt, Outcome};
use super::control::Halt;
use super::reports::{Report, Reporter, Reports};
use super::task::Task;
use super::waker::AttemptWaker;
use crate::order::Order;
use crate::routes::{Readiness, Route};

/// A run ends after the record at which it has taken this long, so that queues which wait for a place
/// in flight get their turn.
const QUANTUM: Duration = Duration::from_millis(10);

/// How many records are started ahead where those before them were duplicates: as likely are these, and
/// their answers come with one trip to the store.
const REPLAYED: usize = 16;

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
        let Reporter { queue, reports } = &reporter;
        let since = Instant::now();
        let is_over = || since.elapsed() >= QUANTUM;
        let is_stopped = || halt.is_paused() || assignment.is_stopped();
        // A suspended scheduler has started this run for its first record, as a probe of the store.
        let is_halted = || is_stopped() || halt.is_suspended();
        let attempt = |record, ahead| {
            let readiness = Readiness::new(*queue, reports.clone());
            Attempt::new(record, readiness, &group, ahead)
        };
        let mut rest = VecDeque::from(records);
        let mut current = match rest.pop_front() {
            Some(first) if !is_stopped() => attempt(first, false),
            _ => return reports.send(Report::Stopped { queue: *queue }),
        };
        let mut ahead = VecDeque::new();
        // How many records are started ahead, since those before them were duplicates.
        let mut replayed = 0;
        loop {
            let outcome = poll_fn(|cx| {
                if let Poll::Ready(outcome) = current.poll(cx, &*route) {
                    return Poll::Ready(outcome);
                }
                if current.has_failed() {
                    // It may be called again, and need a permit that those ahead of their turn have.
                    replayed = 0;
                    take_back(&mut ahead, &mut rest);
                }
                let most = replayed.max(usize::from(current.is_recording()));
                while ahead.len() < most && !is_over() && !is_halted() {
                    let Some(record) = rest.pop_front() else {
                        break;
                    };
                    ahead.push_back(attempt(record, true));
                }
                ahead.iter_mut().for_each(|next| next.poll_ahead(cx, &*route));
                Poll::Pending
            })
            .await;
            let Outcome::Processed { outputs } = outcome else {
                take_back(&mut ahead, &mut rest);
                released(&rest, &assignment).await;
                return reporter.ended(outcome);
            };
            replayed = if current.is_duplicate() { (2 * replayed).clamp(1, REPLAYED) } else { 0 };
            let next = match ahead.pop_front() {
                None if !is_over() => rest.pop_front().map(|record| attempt(record, false)),
                next => next,
            };
            let Some(next) = next else {
                return reporter.ended(Outcome::Processed { outputs });
            };
            reports.send_lazily(Report::Processed { queue: *queue, outputs });
            if is_halted() {
                ahead.push_front(next);
                take_back(&mut ahead, &mut rest);
                released(&rest, &assignment).await;
                return reports.send(Report::Stopped { queue: *queue });
            }
            if is_over() {
                // Only the next one is run, which has its lock.
                take_back(&mut ahead, &mut rest);
            }
            next.begin_turn();
            current = next;
        }
    }
}

/// Drops attempts whose turn has not come.
fn take_back(ahead: &mut VecDeque<Attempt>, rest: &mut VecDeque<Record>) {
    while let Some(attempt) = ahead.pop_back() {
        rest.push_front(attempt.record().clone());
    }
}

/// If the partition is being given up, waits until the locks of records that were dropped ahead of their
/// turn are released, so that the partition's next owner finds them free.
async fn released(records: &VecDeque<Record>, assignment: &Assignment) {
    if assignment.is_stopped() {
        let released = timeout(RELEASE, join_all(records.iter().map(Record::let_go)));
        // Boxed, since few runs get here: it is a fourth of the task's size. The drain logs a timeout.
        let _ = Box::pin(released).await;
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use campanile_core::BoxError;
    use futures_util::FutureExt;
    use futures_util::future::poll_fn;
    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;
    use crate::driver::{QueueId, Switch, Usage, Vitals};
    use crate::routes::{RouteError, RouteFuture};

    /// A route that stands for an idempotency layer: each call is recorded until it is told how it ended.
    #[derive(Default)]
    struct Layered {
        calls: Mutex<Vec<Call>>,
        /// Records below this offset are duplicates.
        duplicates: i64,
    }

    struct Call {
        record: Record,
        steps: mpsc::UnboundedSender<Step>,
    }

    enum Step {
        /// The layer answers with an error, and something in front of it is about to call it again.
        Fails,
        Ends(Result<(), BoxError>),
    }

    impl Route for Layered {
        fn call(&self, record: Record, _: Readiness) -> RouteFuture {
            let (steps, mut next) = mpsc::unbounded_channel();
            let interrupt = record.interrupt();
            let is_duplicate = record.offset() < self.duplicates;
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
                interrupt.set_recording();
                loop {
                    match next.recv().await.expect("the test ends it") {
                        Step::Fails => interrupt.record().set_failed(),
                        Step::Ends(ended) => {
                            return ended.map(|()| Ok(Vec::new())).map_err(RouteError::Failed);
                        }
                    }
                }
            })
        }
    }

    impl Layered {
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

    struct World {
        route: Arc<Layered>,
        assignment: Arc<Assignment>,
        reports: Arc<Reports>,
        _task: Task<()>,
    }

    /// A run of two records, which are no duplicates.
    async fn run() -> World {
        run_of(2, 0).await
    }

    /// A run of so many records, of which the first are duplicates.
    async fn run_of(records: i64, duplicates: i64) -> World {
        let total: Arc<Usage> = Arc::default();
        let assignment = Assignment::new(AssignmentId(0), "t".into(), 0, None, total);
        let (route, assignment) =
            (Arc::new(Layered { duplicates, ..Layered::default() }), Arc::new(assignment));
        let reports = Arc::new(Reports::default());
        let record = |offset| Record::builder("t", 0, offset).build();
        let run = Run {
            records: (0..records).map(record).collect(),
            route: route.clone(),
            assignment: assignment.clone(),
            halt: Switch::new(Vitals::new(Duration::MAX)).halt(),
            group: "g".into(),
            reporter: Reporter { queue: QueueId::default(), reports: reports.clone() },
        };
        let task = run.spawn(&Handle::current());
        let world = World { route, assignment, reports, _task: task };
        world.settle().await;
        world
    }

    impl World {
        async fn settle(&self) {
            for _ in 0..8 {
                yield_now().await;
            }
        }

        fn reported(&self) -> Vec<Report> {
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
    async fn next_record_is_started_ahead_while_the_first_is_being_recorded() {
        let world = run().await;
        assert_eq!(world.route.calls(), 2);
        assert!(world.route.record(0).is_recording());
        assert!(world.route.record(1).is_ahead());
        world.route.end(0, Ok(()));
        world.settle().await;
        assert!(world.route.record(1).is_recording());
        assert!(matches!(world.reported()[..], [Report::Processed { .. }]));
        world.route.end(1, Ok(()));
        world.settle().await;
        let ended = world.reported();
        assert!(matches!(ended[..], [Report::Ended { outcome: Outcome::Processed { .. }, .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn next_record_is_dropped_if_the_first_is_not_recorded() {
        let world = run().await;
        world.route.end(0, Err("the lock is lost".into()));
        world.settle().await;
        let next = world.route.record(1);
        assert!(next.is_ahead() && next.interrupt().is_set());
        let ended = world.reported();
        assert!(matches!(ended[..], [Report::Ended { outcome: Outcome::Failed(_), .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn next_record_is_dropped_if_its_partition_is_stopped_in_the_meantime() {
        let world = run().await;
        world.assignment.stop();
        world.route.end(0, Ok(()));
        world.settle().await;
        let next = world.route.record(1);
        assert!(next.is_ahead() && next.interrupt().is_set());
        let ended = world.reported();
        assert!(matches!(ended[..], [Report::Processed { .. }, Report::Stopped { .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn duplicates_have_the_records_behind_them_started_together() {
        let world = run_of(64, 40).await;
        for _ in 0..10 {
            world.settle().await;
        }
        // The first that is none, and those that were started with the last duplicates.
        let calls = world.route.calls();
        assert!(calls > 41 && calls <= 41 + REPLAYED, "{calls}");
        assert!(world.route.record(40).is_recording());
        assert!((41..calls).all(|call| world.route.record(call).is_ahead()));
        assert_eq!(world.reported().len(), 40);
        world.route.end(40, Err("refused".into()));
        world.settle().await;
        assert!((41..calls).all(|call| world.route.record(call).interrupt().is_set()));
        let ended = world.reported();
        assert!(matches!(ended[..], [Report::Ended { outcome: Outcome::Failed(_), .. }]));
    }

    #[tokio::test(start_paused = true)]
    async fn records_that_are_taken_back_are_started_again_in_their_order() {
        let world = run_of(4, 0).await;
        assert_eq!(world.route.calls(), 2);
        // As where a retry calls the layer again.
        world.route.step(0, Step::Fails);
        world.settle().await;
        assert!(world.route.record(1).interrupt().is_set());
        world.route.end(0, Ok(()));
        world.settle().await;
        let offsets: Vec<_> = (0..4).map(|call| world.route.record(call).offset()).collect();
        assert_eq!(offsets, [0, 1, 1, 2]);
        assert!(world.route.record(2).is_recording() && world.route.record(3).is_ahead());
    }
}
