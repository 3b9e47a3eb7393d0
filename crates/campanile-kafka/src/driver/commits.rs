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

    /// Commits the finished records of these partitions. Ready when all of them are committed, or
    /// when the commit was refused.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
        started: &mut bool,
    ) -> Poll<()> {
        loop {
            if self.in_flight {
                return Poll::Pending;
            }
            if !has_uncommitted(partitions) || (*started && self.refused) {
                return Poll::Ready(());
            }
            if std::mem::replace(started, true) {
                ready!(self.next_commit.as_mut().poll(cx));
            }
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

/// Returns whether any of these partitions has a watermark that is not committed.
pub(super) fn has_uncommitted(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().any(|assignment| assignment.uncommitted().is_some())
}
