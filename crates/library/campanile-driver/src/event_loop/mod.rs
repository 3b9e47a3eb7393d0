//! The event loop of the driver's thread: polls the source and the scheduler, and passes on what each
//! of them reports to the other.

mod commits;
mod intake;
mod revocation;
mod seek;
mod shutdown;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::telemetry::RebalanceKind;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

use self::commits::Commits;
use self::intake::Intake;
use self::revocation::Revocation;
use self::seek::Seek;
use self::shutdown::Phase;
use crate::config::DriverConfig;
use crate::control::DriverControl;
use crate::error::ConsumerError;
use crate::reports::{Report, Reports};
use crate::routes::Router;
use crate::scheduler::Scheduler;
use crate::source::{Assignment, Event, Source, Usage};
use crate::status::ConsumerStage;
use crate::summary::Summary;
use crate::telemetry::commit_durations;

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

pub(crate) struct EventLoop<S> {
    pub(crate) source: S,
    pub(crate) scheduler: Scheduler,
    pub(crate) intake: Intake,
    pub(crate) commits: Commits,
    reports: Arc<Reports>,
    /// The program's runtime.
    runtime: Handle,
    pub(crate) config: Arc<DriverConfig>,
    pub(crate) phase: Phase,
    /// The assigned partitions, including revoked ones that are not released yet.
    pub(crate) assigned: Vec<Arc<Assignment>>,
    pub(crate) revoke: Option<Revocation>,
    pub(crate) seeks: Vec<Seek>,
    pub(crate) error: Option<ConsumerError>,
    event_buffer: Vec<Event>,
    report_buffer: Vec<Report>,
    timer: Pin<Box<Sleep>>,
    last_tick: Instant,
}

impl<S: Source> EventLoop<S> {
    pub(crate) fn new(
        source: S,
        config: DriverConfig,
        router: Router,
        runtime: Handle,
        control: DriverControl,
        usage: Arc<Usage>,
    ) -> Self {
        let (config, reports) = (Arc::new(config), Arc::new(Reports::default()));
        let commits = commit_durations(&config.group);
        Self {
            source,
            scheduler: Scheduler::new(
                config.clone(),
                router,
                runtime.clone(),
                control,
                reports.clone(),
            ),
            intake: Intake::new(config.budget, usage),
            commits: Commits::new(config.commit_interval, commits),
            reports,
            runtime,
            config,
            phase: Phase::Serving,
            assigned: Vec::new(),
            revoke: None,
            seeks: Vec::new(),
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
        self.scheduler.status().enter_stage(ConsumerStage::Serving);
        poll_fn(|cx| self.poll(cx)).await;
        let summary = self.scheduler.status().summary();
        self.scheduler.status().end();
        self.scheduler.export_last_metrics();
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
                self.check_held();
                self.scheduler.dispatch();
            }
            any |= self.poll_revoke(cx);
            any |= self.poll_seeks(cx);
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
                self.scheduler.metrics().count_rebalance(RebalanceKind::Assigned);
                self.scheduler.control().assign(&assignments);
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
                let kind = if lost { RebalanceKind::Lost } else { RebalanceKind::Revoked };
                self.scheduler.metrics().count_rebalance(kind);
                // Otherwise a partition that is assigned again would still be paused.
                let paused = self.intake.revoke(&partitions);
                if !paused.is_empty() {
                    self.source.resume(&paused);
                }
                let timeout = if lost { Duration::ZERO } else { self.config.revoke_timeout };
                let drain = self.scheduler.on_revoked(&partitions, timeout);
                let mut drains = self.abandon_seeks(&partitions);
                drains.push(drain);
                // The same partitions may be lost while they are drained.
                drains.extend(self.revoke.take().into_iter().flat_map(|revoke| revoke.drains));
                self.revoke = Some(Revocation { partitions, lost, drains, commit: None });
            }
            Event::LogChanged(change) => {
                change.log();
                self.scheduler.metrics().count_log_change(&change.partition, change.kind());
            }
            Event::Sought { old, new } => self.on_sought(&old, new),
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
        for assignment in self.scheduler.take_stopped_partitions() {
            self.intake.stop(&assignment, &mut self.source);
        }
        self.report_buffer = report_buffer;
        any
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
            self.source.tick(&self.assigned);
            self.scheduler.tick();
            self.scheduler.export_metrics(self.intake.total());
            if self.scheduler.status().start_ping() {
                let status = self.scheduler.control().status().clone();
                self.runtime.spawn(async move { status.finish_ping() });
            }
        }
        true
    }
}
