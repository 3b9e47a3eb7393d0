//! The schedule of offset commits. At most one commit is in flight at a time: librdkafka repeats
//! failed commits, and a repeated one could otherwise undo a later one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::assignment::Assignment;
use super::source::{CommitResult, Source};

/// The delay before a failed commit is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long the last commit may take before partitions are released.
const FINAL_COMMIT_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) struct Commits {
    /// The commit interval. After a crash, at most the records that were finished within one
    /// interval are replayed, as duplicates.
    interval: Duration,
    in_flight: bool,
    /// Whether the last commit failed permanently.
    refused: bool,
    /// The time at which the next commit may start.
    next_commit: Pin<Box<Sleep>>,
}

impl Commits {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, in_flight: false, refused: false, next_commit: Box::pin(sleep(interval)) }
    }

    /// Handles the end of the commit in flight.
    pub(super) fn on_result(&mut self, result: CommitResult) {
        self.in_flight = false;
        self.refused = result == CommitResult::Refused;
        let after = match result {
            CommitResult::Failed => RETRY_DELAY.min(self.interval),
            CommitResult::Acknowledged | CommitResult::Refused => self.interval,
        };
        self.next_commit.as_mut().reset(Instant::now() + after);
    }

    /// Starts a commit if one is due; immediately if `now` is set.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
        now: bool,
    ) {
        if self.in_flight || !has_uncommitted(partitions) {
            return;
        }
        if now || self.next_commit.as_mut().poll(cx).is_ready() {
            self.start(source, partitions);
        }
    }

    fn start(&mut self, source: &mut impl Source, partitions: &[Arc<Assignment>]) {
        self.refused = false;
        self.in_flight = source.commit(partitions);
        if !self.in_flight {
            self.next_commit.as_mut().reset(Instant::now() + RETRY_DELAY);
        }
    }
}

/// The last commit of partitions before they are released. Records that are not committed by its
/// deadline are delivered again, and answered as duplicates.
pub(super) struct FinalCommit {
    deadline: Pin<Box<Sleep>>,
    /// Whether a commit was started.
    started: bool,
}

impl FinalCommit {
    pub(super) fn new() -> Self {
        Self { deadline: Box::pin(sleep(FINAL_COMMIT_TIMEOUT)), started: false }
    }

    /// Commits the finished records of these partitions. Ready when all of them are committed, when
    /// the commit was refused, or at the deadline.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        commits: &mut Commits,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
    ) -> Poll<()> {
        while !commits.in_flight {
            if !has_uncommitted(partitions) || (self.started && commits.refused) {
                return Poll::Ready(());
            }
            if self.started && commits.next_commit.as_mut().poll(cx).is_pending() {
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

/// Returns whether any of these partitions has a watermark that is not committed.
pub(super) fn has_uncommitted(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().any(|assignment| assignment.uncommitted().is_some())
}
