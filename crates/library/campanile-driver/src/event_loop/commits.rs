//! When offsets are committed. What is committed is [`Assignment::uncommitted`], up to which the
//! [watermark](crate::watermark) has advanced.
//!
//! At most one commit is in flight at a time: librdkafka repeats failed commits, and a repeated one could
//! otherwise undo a later one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::telemetry::{DeliveryError, ResultHistogram};
use tokio::time::{Instant, Sleep, sleep};

use crate::event_loop::EventLoop;
use crate::event_loop::shutdown::Phase;
use crate::source::{Assignment, CommitResult, CommitStart, Source};

/// The delay before a failed commit is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The fraction of the budget at which what records have handed over is committed without waiting for
/// the commit interval.
const EARLY_COMMIT_LEVEL: f64 = 0.5;

/// How long the last commit may take before partitions are released.
const FINAL_COMMIT_TIMEOUT: Duration = Duration::from_secs(4);

impl<S: Source> EventLoop<S> {
    /// Commits the assigned partitions at the interval, unless a revoke or the end of serving makes their
    /// last commit.
    pub(crate) fn poll_commits(&mut self, cx: &mut Context<'_>) {
        if self.revoke.is_none() && matches!(self.phase, Phase::Serving | Phase::Draining) {
            let now = self.config.has_sinks && self.intake.level() >= EARLY_COMMIT_LEVEL;
            self.commits.poll(cx, &mut self.source, &self.assigned, now);
        }
    }
}

pub(crate) struct Commits {
    /// The commit interval. After a crash, at most the records that were finished within one
    /// interval are replayed, as duplicates.
    interval: Duration,
    in_flight: bool,
    /// How the last commit ended, also if it could not be started.
    last: CommitResult,
    /// The time at which the next commit may start.
    next_commit: Pin<Box<Sleep>>,
    /// When the commit in flight was started.
    started_at: Instant,
    durations: ResultHistogram<DeliveryError>,
}

impl Commits {
    pub(crate) fn new(interval: Duration, durations: ResultHistogram<DeliveryError>) -> Self {
        let (next_commit, started_at) = (Box::pin(sleep(interval)), Instant::now());
        let (in_flight, last) = (false, CommitResult::Acknowledged);
        Self { interval, in_flight, last, next_commit, started_at, durations }
    }

    /// Handles the end of the commit in flight.
    pub(crate) fn on_result(&mut self, result: CommitResult) {
        self.in_flight = false;
        self.last = result;
        let error = match result {
            CommitResult::Acknowledged => None,
            CommitResult::Refused => Some(DeliveryError::Refused),
            CommitResult::Failed => Some(DeliveryError::Other),
        };
        self.durations.record(error, self.started_at.elapsed().as_secs_f64());
        let after = match result {
            CommitResult::Failed => RETRY_DELAY.min(self.interval),
            CommitResult::Acknowledged | CommitResult::Refused => self.interval,
        };
        self.next_commit.as_mut().reset(Instant::now() + after);
    }

    /// Starts a commit if one is due; immediately if `now` is set.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
        now: bool,
    ) {
        // The partitions are looked at last: this is polled in each round, and there may be thousands.
        if !self.in_flight
            && (now || self.next_commit.as_mut().poll(cx).is_ready())
            && has_uncommitted(partitions)
        {
            self.start(source, partitions);
        }
    }

    fn start(&mut self, source: &mut impl Source, partitions: &[Arc<Assignment>]) {
        self.started_at = Instant::now();
        self.last = match source.commit(partitions) {
            CommitStart::Started => {
                self.in_flight = true;
                return;
            }
            CommitStart::NotNow => CommitResult::Failed,
            CommitStart::Never => CommitResult::Refused,
        };
        self.next_commit.as_mut().reset(Instant::now() + RETRY_DELAY);
    }
}

/// The last commit of partitions before they are released. Records that are not committed by its
/// deadline are delivered again, and answered as duplicates.
pub(crate) struct FinalCommit {
    deadline: Pin<Box<Sleep>>,
    /// Whether a commit was started.
    started: bool,
}

impl FinalCommit {
    pub(crate) fn new() -> Self {
        Self { deadline: Box::pin(sleep(FINAL_COMMIT_TIMEOUT)), started: false }
    }

    /// Commits the finished records of these partitions. Ready when all of them are committed, when
    /// the commit was refused, or at the deadline.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        commits: &mut Commits,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
    ) -> Poll<()> {
        while !commits.in_flight {
            if !has_uncommitted(partitions)
                || (self.started && commits.last == CommitResult::Refused)
            {
                return Poll::Ready(());
            }
            // A commit that succeeded may have contained only the records of an earlier one that failed.
            let must_wait = self.started && commits.last == CommitResult::Failed;
            if must_wait && commits.next_commit.as_mut().poll(cx).is_pending() {
                break;
            }
            self.started = true;
            commits.start(source, partitions);
        }
        ready!(self.deadline.as_mut().poll(cx));
        tracing::warn!("timed out waiting for the last commit; records may be delivered again");
        Poll::Ready(())
    }
}

pub(crate) fn has_uncommitted(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().any(|assignment| assignment.uncommitted().is_some())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use crate::seek::{SeekError, SeekTo};
    use crate::source::{Amount, Event, SeekTarget, Usage};
    use crate::telemetry::commit_durations;

    /// A source with this answer to a commit.
    struct CommitSource(CommitStart);

    impl Source for CommitSource {
        fn commit(&mut self, _: &[Arc<Assignment>]) -> CommitStart {
            self.0
        }

        fn poll(&mut self, _: &mut Context<'_>, _: Option<Amount>, _: &mut Vec<Event>) -> bool {
            unreachable!("only commits are made")
        }

        fn look_up(
            &mut self,
            _: &Arc<Assignment>,
            _: SeekTo,
        ) -> BoxFuture<'static, Result<SeekTarget, SeekError>> {
            unreachable!("only commits are made")
        }

        fn seek(&mut self, _: &Arc<Assignment>, _: i64) {}
        fn pause(&mut self, _: &[Arc<Assignment>]) {}
        fn resume(&mut self, _: &[Arc<Assignment>]) {}
        fn release(&mut self) {}
        fn tick(&mut self, _: &[Arc<Assignment>]) {}
        fn close(&mut self) {}
    }

    /// A partition with finished records that are not committed.
    fn uncommitted() -> Arc<Assignment> {
        let total: Arc<Usage> = Arc::default();
        let assignment = Assignment::new("t".into(), 0, total);
        assignment.advance(7);
        Arc::new(assignment)
    }

    /// Measures how long the last commit of this source takes.
    async fn final_commit(start: CommitStart) -> Duration {
        let partitions = [uncommitted()];
        let (mut source, began) = (CommitSource(start), Instant::now());
        let (mut commits, mut last) =
            (Commits::new(Duration::from_secs(1), commit_durations("g")), FinalCommit::new());
        poll_fn(|cx| last.poll(cx, &mut commits, &mut source, &partitions)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn last_commit_is_awaited_only_while_it_is_possible() {
        assert_eq!(final_commit(CommitStart::Never).await, Duration::ZERO);
        assert!(final_commit(CommitStart::NotNow).await >= FINAL_COMMIT_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn last_commit_does_not_wait_for_the_interval() {
        let (partitions, mut source) = ([uncommitted()], CommitSource(CommitStart::Started));
        let (mut commits, mut last) =
            (Commits::new(Duration::from_secs(10), commit_durations("g")), FinalCommit::new());
        for (result, continues) in
            [(CommitResult::Acknowledged, true), (CommitResult::Failed, false)]
        {
            let mut poll = |commits: &mut Commits| {
                let polled = poll_fn(|cx| last.poll(cx, commits, &mut source, &partitions));
                assert!(polled.now_or_never().is_none());
            };
            poll(&mut commits);
            assert!(commits.in_flight);
            commits.on_result(result);
            poll(&mut commits);
            assert_eq!(commits.in_flight, continues);
        }
    }
}
