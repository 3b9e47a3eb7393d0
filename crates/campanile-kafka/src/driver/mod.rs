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
//! * `control`, `status`: the state that a [`Handle`](crate::Handle) sets and reads.

mod assignment;
mod attempt;
mod budget;
mod commits;
mod control;
mod flow;
mod intake;
mod offset;
mod offset_range;
mod reports;
mod run;
mod scheduler;
#[cfg(test)]
mod simulation;
mod source;
mod span;
mod status;
mod task;
mod verdict;
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
pub(crate) use self::control::{Control, DriverControl, Shutdown};
pub(crate) use self::reports::{Report, Reports};
pub(crate) use self::scheduler::{QueueId, Services};
pub(crate) use self::source::{CommitResult, Event, Received, Source};
pub(crate) use self::span::RecordSpans;
pub(crate) use self::status::DriverStatus;

use self::commits::{Commits, FinalCommit};
use self::intake::Intake;
use self::scheduler::{DrainId, Scheduler};
#[cfg(test)]
use self::simulation::{Bug, is_planted};
use crate::error::ConsumerError;
use crate::policies::Policies;
use crate::status::Stage;
use crate::summary::Summary;

/// The fraction of the budget below which a full consumer reads again.
const RESUME_LEVEL: f64 = 0.75;

/// The fraction of the budget at which transactions are committed without waiting for the commit
/// interval.
const EARLY_COMMIT_LEVEL: f64 = 0.5;

/// How long to wait until the locks of dropped futures are released, so that the next owner finds them
/// free. If the store is unavailable, the locks expire by themselves.
const LOCK_RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the consumer may take to leave its group. Unreachable brokers do not delay the end of
/// serving for longer.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which status, stalls and health are updated.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which the source is polled even if nothing has woken the driver.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of rounds in one poll, after which other tasks of the driver's runtime get their
/// turn.
const POLL_BUDGET: usize = 32;

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
    revoke: Option<Revocation>,
    error: Option<ConsumerError>,
    event_buffer: Vec<Event>,
    report_buffer: Vec<Report>,
    timer: Pin<Box<Sleep>>,
    last_tick: Instant,
}

enum Phase {
    Serving,
    /// No further record is started, and records in flight may finish.
    Draining,
    /// The offsets of finished records are committed.
    Committing(FinalCommit),
    /// The source leaves its group, until this deadline at the latest.
    Closing(Pin<Box<Sleep>>),
    Closed,
}

/// Revoked partitions that are not released yet.
struct Revocation {
    partitions: Vec<Arc<Assignment>>,
    lost: bool,
    drain: DrainId,
    /// Set once the partitions are drained.
    commit: Option<FinalCommit>,
}

impl<S: Source> Driver<S> {
    pub(crate) fn new(
        source: S,
        policies: Policies,
        services: Services,
        control: DriverControl,
        settings: Settings,
    ) -> Self {
        let reports = Arc::new(Reports::default());
        let runtime = services.runtime.clone();
        Self {
            source,
            scheduler: Scheduler::new(policies, services, control, reports.clone()),
            intake: Intake::new(settings.budget, settings.total.clone()),
            commits: Commits::new(settings.commit_interval),
            reports,
            runtime,
            settings,
            phase: Phase::Serving,
            assigned: Vec::new(),
            revoke: None,
            error: None,
            event_buffer: Vec::new(),
            report_buffer: Vec::new(),
            timer: Box::pin(sleep(POLL_INTERVAL)),
            last_tick: Instant::now(),
        }
    }

    /// Serves until a shutdown or an error, then drains all partitions, commits and leaves the group.
    /// Returns the source as well, because dropping it may block.
    pub(crate) async fn run(mut self) -> (Result<Summary, ConsumerError>, S) {
        self.scheduler.status().enter_stage(Stage::Serving);
        poll_fn(|cx| self.poll(cx)).await;
        let summary = self.scheduler.summary();
        match &self.error {
            Some(error) => tracing::info!(?summary, %error, "consumer stopped"),
            None => tracing::info!(?summary, "consumer stopped"),
        }
        (self.error.map_or(Ok(summary), Err), self.source)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..POLL_BUDGET {
            self.scheduler.status().record_poll();
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
        let mut events = std::mem::take(&mut self.event_buffer);
        let any = self.source.poll(cx, room, &mut events);
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.event_buffer = events;
        any
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Assigned(assignments) => {
                self.scheduler.status().assign(&assignments);
                self.intake.assign(&assignments);
                self.assigned.extend(assignments.iter().cloned());
                for assignment in assignments {
                    if let Err(error) = self.scheduler.on_assigned(assignment) {
                        self.stop(Some(ConsumerError::Config(error)));
                    }
                }
            }
            Event::Records(records) => {
                if let Err(error) = self.scheduler.on_received(records) {
                    self.stop(Some(error));
                }
            }
            Event::Revoked { partitions, lost } => {
                self.scheduler.status().revoke(lost);
                // Otherwise a partition that is assigned again would still be paused.
                let paused = self.intake.revoke(&partitions);
                if !paused.is_empty() {
                    self.source.resume(&paused);
                }
                let timeout = if lost { Duration::ZERO } else { self.settings.revoke_timeout };
                let drain = self.scheduler.on_revoked(&partitions, timeout);
                self.revoke = Some(Revocation { partitions, lost, drain, commit: None });
            }
            Event::Committed(result) => self.commits.on_result(result),
            Event::Failed(error) => self.stop(Some(error)),
            Event::Closed => self.phase = Phase::Closed,
        }
    }

    fn poll_reports(&mut self, cx: &mut Context<'_>) -> bool {
        let mut report_buffer = std::mem::take(&mut self.report_buffer);
        let any = self.reports.take(cx, &mut report_buffer);
        for report in report_buffer.drain(..) {
            if let Err(error) = self.scheduler.handle_report(report) {
                self.stop(Some(error));
            }
        }
        self.report_buffer = report_buffer;
        any
    }

    fn poll_shutdown(&mut self) -> bool {
        let Some(how) = self.scheduler.control().take_shutdown() else {
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
            self.scheduler.status().enter_stage(Stage::Draining);
        }
    }

    /// While outputs fill the budget, restricts the scheduler to records that release outputs when
    /// they finish.
    fn check_outputs(&mut self) {
        if self.settings.has_outputs {
            let threshold = if self.scheduler.outputs_full() { RESUME_LEVEL } else { 1.0 };
            self.scheduler.set_outputs_full(self.intake.outputs_level() >= threshold);
        }
    }

    /// Releases revoked partitions once they are drained and committed. Returns whether it has
    /// released any.
    fn poll_revoke(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(revoke) = &mut self.revoke else {
            return false;
        };
        let drained = self.scheduler.is_drain_finished(revoke.drain);
        #[cfg(test)]
        let drained = drained || is_planted(Bug::RevokeNotDrained);
        if !drained {
            return false;
        }
        if !revoke.lost {
            let commit = revoke.commit.get_or_insert_with(FinalCommit::new);
            let (commits, source) = (&mut self.commits, &mut self.source);
            if commit.poll(cx, commits, source, &revoke.partitions).is_pending() {
                return false;
            }
        }
        // Outputs that are not in a transaction by now are left to the partitions' next owners.
        revoke.partitions.iter().for_each(|assignment| assignment.pending_outputs.close());
        self.assigned.retain(|assignment| !revoke.partitions.iter().any(|r| r.id == assignment.id));
        self.revoke = None;
        self.source.release();
        true
    }

    fn poll_commits(&mut self, cx: &mut Context<'_>) {
        if self.revoke.is_none() && matches!(self.phase, Phase::Serving | Phase::Draining) {
            let now = self.settings.has_outputs && self.intake.level() >= EARLY_COMMIT_LEVEL;
            self.commits.poll(cx, &mut self.source, &self.assigned, now);
        }
    }

    fn poll_phase(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.phase {
            Phase::Draining if self.scheduler.is_drained() && self.revoke.is_none() => {
                self.scheduler.status().enter_stage(Stage::Closing);
                self.phase = Phase::Committing(FinalCommit::new());
                true
            }
            Phase::Committing(commit) => {
                let (commits, source) = (&mut self.commits, &mut self.source);
                if commit.poll(cx, commits, source, &self.assigned).is_pending() {
                    return false;
                }
                self.assigned.iter().for_each(|assignment| assignment.pending_outputs.close());
                self.source.close();
                self.phase = Phase::Closing(Box::pin(sleep(LEAVE_TIMEOUT)));
                true
            }
            Phase::Closing(deadline) => {
                let timed_out = deadline.as_mut().poll(cx).is_ready();
                if timed_out {
                    tracing::warn!("timed out leaving the group");
                    self.phase = Phase::Closed;
                }
                timed_out
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
        self.timer.as_mut().reset(now + POLL_INTERVAL);
        if now - self.last_tick >= TICK_INTERVAL {
            self.last_tick = now;
            self.source.update_end_offsets(&self.assigned);
            self.scheduler.tick();
            if self.scheduler.status().start_ping() {
                let status = self.scheduler.control().status().clone();
                self.runtime.spawn(async move { status.finish_ping() });
            }
        }
        true
    }
}
