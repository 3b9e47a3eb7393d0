//! The driver: takes records from a [`Source`], starts attempts at them, and has the source commit
//! the offsets of finished records. The driver does not depend on a Kafka client.
//!
//! | | runs on | does |
//! |---|---|---|
//! | source, scheduler, budget, commits | the driver's own thread | never blocks, and runs no user code |
//! | attempts | the program's runtime, spawned from the driver's thread | decode, key, acquire, handler, settle |
//!
//! The thread is woken by the source and by attempts that end. It is not a worker of the program's
//! runtime, so user code cannot keep it from serving other partitions, rebalances or the shutdown.
//!
//! * `source`: the trait that a Kafka client implements; `assignment`: the state of one partition while
//!   it is assigned.
//! * `scheduler`: queues, timers, retries, the breaker, drains.
//! * `run`: the task that runs records, each in an `attempt`; `waker` and `reports`: the connection
//!   between this task and the scheduler.
//! * `intake`, `flow`, `budget`: how much is read, and from which partitions.
//! * `watermark`, `commits`: which offsets are committed, and when.
//! * `control`, `vitals`: the state that a [`Handle`](crate::Handle) sets and reads.

mod assignment;
mod attempt;
mod budget;
mod commits;
mod control;
mod extent;
mod flow;
mod hash;
mod intake;
mod offset;
mod reports;
mod run;
mod scheduler;
#[cfg(test)]
mod simulation;
mod source;
mod span;
mod task;
mod verdict;
mod vitals;
mod waker;
mod watermark;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

pub(crate) use self::assignment::{Assignment, AssignmentId};
pub(crate) use self::budget::{Amount, Usage};
pub(crate) use self::control::{Control, Shutdown, Switch};
pub(crate) use self::reports::{Report, Reports};
pub(crate) use self::scheduler::{QueueId, Services};
pub(crate) use self::source::{CommitEnd, Event, Received, Source};
pub(crate) use self::span::RecordSpans;
pub(crate) use self::vitals::Vitals;

use self::commits::Commits;
use self::intake::Intake;
use self::scheduler::{DrainId, Scheduler};
#[cfg(test)]
use self::simulation::{Bug, is_planted};
use crate::error::ConsumerError;
use crate::policies::Policies;
use crate::status::Stage;
use crate::summary::Summary;

/// The fraction of the budget below which a full consumer reads again.
const LOW_WATER: f64 = 0.75;

/// The fraction of the budget at which transactions are committed without waiting for the commit
/// interval.
const HURRY: f64 = 0.5;

/// How long the last commit may take before partitions are released. Records that are not committed
/// by then are delivered again, and answered as duplicates.
const LAST_COMMIT: Duration = Duration::from_secs(4);

/// How long to wait until the locks of dropped futures are released, so that the next owner finds them
/// free. If the store is unavailable, the locks expire by themselves.
const RELEASE: Duration = Duration::from_secs(1);

/// How long the consumer may take to leave its group. Unreachable brokers do not delay the end of
/// serving for longer.
pub(crate) const CLOSE: Duration = Duration::from_secs(5);

/// The interval at which status, stalls and health are updated.
const TICK: Duration = Duration::from_secs(1);

/// The interval at which the source is polled even if nothing has woken the driver.
const POLL: Duration = Duration::from_millis(100);

/// The maximum number of rounds in one poll, after which other tasks of the driver's runtime get their
/// turn.
const ROUNDS: usize = 32;

/// The settings of the driver.
pub(crate) struct Settings {
    pub(crate) budget: Amount,
    /// The memory usage of all partitions, shared with the source.
    pub(crate) total: Arc<Usage>,
    pub(crate) drain_timeout: Duration,
    pub(crate) revoke_timeout: Duration,
    pub(crate) commit_interval: Duration,
    /// Whether records have outputs, which are committed in transactions.
    pub(crate) has_outputs: bool,
}

pub(crate) struct Driver<S> {
    source: S,
    scheduler: Scheduler,
    intake: Intake,
    commits: Commits,
    reports: Arc<Reports>,
    /// The program's runtime.
    runtime: tokio::runtime::Handle,
    settings: Settings,
    phase: Phase,
    /// The assigned partitions, including revoked ones that are not released yet.
    assigned: Vec<Arc<Assignment>>,
    revoke: Option<Revoke>,
    error: Option<ConsumerError>,
    events: Vec<Event>,
    reported: Vec<Report>,
    timer: Pin<Box<Sleep>>,
    ticked: Instant,
}

enum Phase {
    Serving,
    /// No further record is started, and records in flight may finish.
    Draining,
    /// The offsets of finished records are committed, until `late` at the latest.
    Committing {
        late: Pin<Box<Sleep>>,
        repeated: bool,
    },
    /// The source leaves its group, until this deadline at the latest.
    Closing(Pin<Box<Sleep>>),
    Closed,
}

/// Revoked partitions that are not released yet.
struct Revoke {
    partitions: Vec<Arc<Assignment>>,
    lost: bool,
    drain: DrainId,
    /// The deadline of the last commit, and whether a commit was started already. Set once the
    /// partitions are drained.
    commit: Option<(Pin<Box<Sleep>>, bool)>,
}

impl<S: Source> Driver<S> {
    pub(crate) fn new(
        source: S,
        policies: Policies,
        services: Services,
        switch: Switch,
        settings: Settings,
    ) -> Self {
        let reports = Arc::new(Reports::default());
        let runtime = services.runtime.clone();
        Self {
            source,
            scheduler: Scheduler::new(policies, services, switch, reports.clone()),
            intake: Intake::new(settings.budget, settings.total.clone()),
            commits: Commits::new(settings.commit_interval),
            reports,
            runtime,
            settings,
            phase: Phase::Serving,
            assigned: Vec::new(),
            revoke: None,
            error: None,
            events: Vec::new(),
            reported: Vec::new(),
            timer: Box::pin(sleep(POLL)),
            ticked: Instant::now(),
        }
    }

    /// Serves until a shutdown or an error, then drains all partitions, commits and leaves the group.
    /// Returns the source as well, because dropping it may block.
    pub(crate) async fn run(mut self) -> (Result<Summary, ConsumerError>, S) {
        self.scheduler.vitals().enter(Stage::Serving);
        poll_fn(|cx| self.poll(cx)).await;
        let summary = self.scheduler.summary();
        match &self.error {
            Some(error) => tracing::info!(?summary, %error, "consumer stopped"),
            None => tracing::info!(?summary, "consumer stopped"),
        }
        (self.error.map_or(Ok(summary), Err), self.source)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS {
            self.scheduler.vitals().round();
            let mut any = self.poll_source(cx);
            any |= self.poll_reports(cx);
            any |= self.scheduler.poll(cx);
            any |= self.poll_shutdown();
            if matches!(self.phase, Phase::Serving) {
                self.check_outputs();
                self.scheduler.dispatch();
            }
            any |= self.poll_revoke(cx);
            self.poll_commits(cx);
            any |= self.poll_phase(cx);
            if matches!(self.phase, Phase::Closed) {
                return Poll::Ready(());
            }
            any |= self.poll_timer(cx);
            if !any {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> bool {
        let stop = !matches!(self.phase, Phase::Serving);
        let room = if stop { None } else { self.intake.room() };
        self.intake.pause_and_resume(&mut self.source, stop);
        let mut events = std::mem::take(&mut self.events);
        let any = self.source.poll(cx, room, &mut events);
        for event in events.drain(..) {
            self.event(event);
        }
        self.events = events;
        any
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Assigned(assignments) => {
                self.scheduler.vitals().assign(&assignments);
                self.intake.assign(&assignments);
                self.assigned.extend(assignments.iter().cloned());
                for assignment in assignments {
                    if let Err(error) = self.scheduler.assigned(assignment) {
                        self.stop(Some(ConsumerError::Config(error)));
                    }
                }
            }
            Event::Records(records) => {
                if let Err(error) = self.scheduler.received(records) {
                    self.stop(Some(error));
                }
            }
            Event::Revoked { partitions, lost } => {
                self.scheduler.vitals().revoke(lost);
                // Otherwise a partition that is assigned again would still be paused.
                let paused = self.intake.revoke(&partitions);
                if !paused.is_empty() {
                    self.source.resume(&paused);
                }
                let timeout = if lost { Duration::ZERO } else { self.settings.revoke_timeout };
                let drain = self.scheduler.revoked(&partitions, timeout);
                self.revoke = Some(Revoke { partitions, lost, drain, commit: None });
            }
            Event::Committed(end) => self.commits.ended(end),
            Event::Failed(error) => self.stop(Some(error)),
            Event::Closed => self.phase = Phase::Closed,
        }
    }

    fn poll_reports(&mut self, cx: &mut Context<'_>) -> bool {
        let mut reported = std::mem::take(&mut self.reported);
        let any = self.reports.take(cx, &mut reported);
        for report in reported.drain(..) {
            if let Err(error) = self.scheduler.report(report) {
                self.stop(Some(error));
            }
        }
        self.reported = reported;
        any
    }

    fn poll_shutdown(&mut self) -> bool {
        let Some(how) = self.scheduler.switch().take_shutdown() else {
            return false;
        };
        self.stop(None);
        if how == Shutdown::Now {
            self.scheduler.expire_drains();
        }
        true
    }

    /// Begins to drain all partitions: no further record is started. `run` returns the first error.
    fn stop(&mut self, error: Option<ConsumerError>) {
        if let Some(error) = error {
            self.error.get_or_insert(error);
        }
        if matches!(self.phase, Phase::Serving) {
            self.phase = Phase::Draining;
            // The stage changes only after the scheduler has stopped, so no record is started in it.
            self.scheduler.stop(self.settings.drain_timeout);
            self.scheduler.vitals().enter(Stage::Draining);
        }
    }

    /// While outputs fill the budget, restricts the scheduler to records that release outputs when
    /// they finish.
    fn check_outputs(&mut self) {
        if self.settings.has_outputs {
            let least = if self.scheduler.outputs_full() { LOW_WATER } else { 1.0 };
            self.scheduler.set_outputs_full(self.intake.outputs_level() >= least);
        }
    }

    /// Releases revoked partitions once they are drained and committed. Returns whether it has
    /// released any.
    fn poll_revoke(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(revoke) = &mut self.revoke else {
            return false;
        };
        let drained = self.scheduler.is_drained_of(revoke.drain);
        #[cfg(test)]
        let drained = drained || is_planted(Bug::RevokeNotDrained);
        if !drained {
            return false;
        }
        if !revoke.lost {
            let (late, repeated) =
                revoke.commit.get_or_insert_with(|| (Box::pin(sleep(LAST_COMMIT)), false));
            let (source, partitions) = (&mut self.source, &revoke.partitions);
            if self.commits.poll_flush(cx, source, partitions, repeated).is_pending() {
                if late.as_mut().poll(cx).is_pending() {
                    return false;
                }
                tracing::warn!(
                    "timed out committing revoked partitions; records may be delivered again"
                );
            }
        }
        // Outputs that are not in a transaction by now are left to the partitions' next owners.
        revoke.partitions.iter().for_each(|assignment| assignment.outbox.close());
        self.assigned.retain(|assignment| !revoke.partitions.iter().any(|r| r.id == assignment.id));
        self.revoke = None;
        self.source.release();
        true
    }

    fn poll_commits(&mut self, cx: &mut Context<'_>) {
        if self.revoke.is_none() && matches!(self.phase, Phase::Serving | Phase::Draining) {
            let now = self.settings.has_outputs && self.intake.level() >= HURRY;
            self.commits.poll(cx, &mut self.source, &self.assigned, now);
        }
    }

    fn poll_phase(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.phase {
            Phase::Draining if self.scheduler.is_drained() && self.revoke.is_none() => {
                self.scheduler.vitals().enter(Stage::Closing);
                let late = Box::pin(sleep(LAST_COMMIT));
                self.phase = Phase::Committing { late, repeated: false };
                true
            }
            Phase::Committing { late, repeated } => {
                let source = &mut self.source;
                if self.commits.poll_flush(cx, source, &self.assigned, repeated).is_pending() {
                    if late.as_mut().poll(cx).is_pending() {
                        return false;
                    }
                    tracing::warn!(
                        "timed out waiting for the last commit; records may be delivered again"
                    );
                }
                self.assigned.iter().for_each(|assignment| assignment.outbox.close());
                self.source.close();
                self.phase = Phase::Closing(Box::pin(sleep(CLOSE)));
                true
            }
            Phase::Closing(late) => {
                let late = late.as_mut().poll(cx).is_ready();
                if late {
                    tracing::warn!("timed out leaving the group");
                    self.phase = Phase::Closed;
                }
                late
            }
            _ => false,
        }
    }

    /// Wakes the driver periodically, to poll the source and to take reports that did not wake it, and
    /// once a second to update status and health.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        if self.timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        let now = Instant::now();
        self.timer.as_mut().reset(now + POLL);
        if now - self.ticked >= TICK {
            self.ticked = now;
            self.source.update_extents(&self.assigned);
            self.scheduler.tick();
            if self.scheduler.vitals().ping() {
                let vitals = self.scheduler.switch().vitals().clone();
                self.runtime.spawn(async move { vitals.pong() });
            }
        }
        true
    }
}
