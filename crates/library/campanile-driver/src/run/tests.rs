//! Tests of runs, over a route in place of a layer.

use std::sync::Mutex;

use campanile_core::{BoxError, Interrupt};
use futures_util::future::poll_fn;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::*;
use crate::config::DriverConfig;
use crate::control::{DriverControl, DriverStatus};
use crate::reports::{QueueId, Reports};
use crate::routes::{RouteError, RouteFuture};
use crate::source::Usage;
use crate::telemetry::ConsumerMetrics;

/// A route in place of an idempotency layer. The outcome of a call is being recorded until the test
/// ends the call.
#[derive(Default)]
struct FakeLayer {
    calls: Mutex<Vec<Call>>,
    /// Records below this offset are duplicates.
    duplicates: i64,
    /// The record with this offset is processed first.
    slow: Option<i64>,
    /// Keeps the locks of records that are not duplicates, as if their release took a while.
    locks: Option<Mutex<Vec<Interrupt>>>,
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
        let interrupt = record.attempt().interrupt();
        let is_duplicate = record.offset() < self.duplicates;
        let is_slow = Some(record.offset()) == self.slow;
        self.calls.lock().unwrap().push(Call { record, steps });
        if let Some(locks) = self.locks.as_ref().filter(|_| !is_duplicate) {
            locks.lock().unwrap().push(interrupt.clone());
        }
        Box::pin(async move {
            if let Some(turn) = interrupt.turn(is_duplicate) {
                turn.await;
            }
            if is_duplicate {
                yield_now().await;
                interrupt.set_duplicate();
                return Ok(Ok(None));
            }
            match is_slow {
                true => interrupt.record().attempt().set_processing(),
                false => interrupt.set_recording(),
            }
            loop {
                match next.recv().await.expect("the test ends the call") {
                    Step::Processes => interrupt.record().attempt().set_processing(),
                    Step::Ends(ended) => {
                        return ended.map(|()| Ok(None)).map_err(RouteError::Failed);
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
    let assignment = Assignment::new("t".into(), 0, total);
    let (route, assignment) = (Arc::new(route), Arc::new(assignment));
    let reports = Arc::new(Reports::default());
    let record = |offset| Record::builder("t", 0, offset).build();
    let run = Run {
        records: (0..records).map(record).collect(),
        route: route.clone(),
        assignment: assignment.clone(),
        metrics: ConsumerMetrics::new("g".into()).on_assigned(&assignment, &Arc::default()),
        run_gate: DriverControl::new(DriverStatus::new(Duration::MAX)).run_gate(),
        config: Arc::new(DriverConfig::new("g")),
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
    assert!(test.route.record(0).attempt().is_recording());
    assert!(test.route.record(1).attempt().is_ahead());
    test.route.end(0, Ok(()));
    test.settle().await;
    assert!(test.route.record(1).attempt().is_recording());
    assert!(matches!(test.take_reports()[..], [Report::Processed { .. }]));
    test.route.end(1, Ok(()));
    test.settle().await;
    let ended = test.take_reports();
    assert!(matches!(ended[..], [Report::RunEnded { outcome: RunOutcome::Processed { .. }, .. }]));
}

#[tokio::test(start_paused = true)]
async fn next_record_is_dropped_if_the_first_is_not_recorded() {
    let test = start_run().await;
    test.route.end(0, Err("the lock is lost".into()));
    test.settle().await;
    let next = test.route.record(1);
    assert!(next.attempt().is_ahead() && next.attempt().interrupt().is_set());
    let ended = test.take_reports();
    assert!(matches!(ended[..], [Report::RunEnded { outcome: RunOutcome::Failed(_), .. }]));
}

#[tokio::test(start_paused = true)]
async fn next_record_is_dropped_if_its_partition_is_stopped() {
    let test = start_run().await;
    test.assignment.stop();
    test.route.end(0, Ok(()));
    test.settle().await;
    let next = test.route.record(1);
    assert!(next.attempt().is_ahead() && next.attempt().interrupt().is_set());
    let ended = test.take_reports();
    assert!(matches!(ended[..], [Report::Processed { .. }, Report::RunStopped { .. }]));
}

#[tokio::test(start_paused = true)]
async fn records_after_duplicates_are_started_together() {
    let test = start_run_of(64, FakeLayer { duplicates: 40, ..FakeLayer::default() }).await;
    for _ in 0..10 {
        test.settle().await;
    }
    assert!(test.route.record(40).attempt().is_recording());
    // The records that were started together with the last duplicates, and again the next record.
    let calls = test.route.calls();
    assert!(calls > 43 && calls <= 41 + MAX_GROUP_LEN, "{calls}");
    assert!((42..calls - 1).all(|call| test.route.record(call).attempt().interrupt().is_set()));
    assert_eq!(test.route.record(calls - 1).offset(), 41);
    assert!(test.route.record(calls - 1).attempt().is_ahead());
    assert_eq!(test.take_reports().len(), 40);
}

#[tokio::test(start_paused = true)]
async fn handler_runs_once_the_locks_behind_it_are_released() {
    let locks = Some(Mutex::default());
    let route = FakeLayer { duplicates: 40, slow: Some(40), locks, ..FakeLayer::default() };
    let test = start_run_of(64, route).await;
    for _ in 0..10 {
        test.settle().await;
    }
    let calls = test.route.calls();
    assert!(calls > 41, "{calls}");
    assert!((41..calls).all(|call| test.route.record(call).attempt().interrupt().is_set()));
    assert!(test.route.record(40).attempt().is_ahead());
    test.route.locks.as_ref().unwrap().lock().unwrap().clear();
    test.settle().await;
    assert!(test.route.record(40).attempt().is_processing());
    assert_eq!(test.route.calls(), calls);
    test.route.end(40, Ok(()));
    test.settle().await;
    assert_eq!(test.route.record(calls).offset(), 41);
    assert!(test.route.record(calls).attempt().is_recording());
}

#[tokio::test(start_paused = true)]
async fn handler_waits_for_the_release_of_locks_for_a_limited_time() {
    let locks = Some(Mutex::default());
    let route = FakeLayer { duplicates: 40, slow: Some(40), locks, ..FakeLayer::default() };
    let test = start_run_of(64, route).await;
    tokio::time::sleep(LOCK_RELEASE_TIMEOUT).await;
    test.settle().await;
    assert!(test.route.record(40).attempt().is_processing());
}

#[tokio::test(start_paused = true)]
async fn cancelled_records_are_restarted_in_order() {
    let test = start_run_of(4, FakeLayer::default()).await;
    assert_eq!(test.route.calls(), 2);
    // As if a retry were about to call the layer again.
    test.route.step(0, Step::Processes);
    test.settle().await;
    assert!(test.route.record(1).attempt().interrupt().is_set());
    test.route.end(0, Ok(()));
    test.settle().await;
    let offsets: Vec<_> = (0..4).map(|call| test.route.record(call).offset()).collect();
    assert_eq!(offsets, [0, 1, 1, 2]);
    assert!(
        test.route.record(2).attempt().is_recording() && test.route.record(3).attempt().is_ahead()
    );
}
