//! When offsets are committed. One commit is in flight at a time: a later one could otherwise be taken
//! back by an earlier one that librdkafka repeats.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::assignment::Assignment;
use super::source::{CommitEnd, Source};

/// How soon a commit is repeated that has failed while it is waited for.
const REPEAT: Duration = Duration::from_millis(100);

pub(super) struct Commits {
    /// How often what is finished is committed: what a crash replays at most, as duplicates.
    interval: Duration,
    in_flight: bool,
    /// Whether the last commit has failed for good.
    refused: bool,
    /// When the next one may start.
    next: Pin<Box<Sleep>>,
}

impl Commits {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, in_flight: false, refused: false, next: Box::pin(sleep(interval)) }
    }

    /// The commit in flight has ended.
    pub(super) fn ended(&mut self, end: CommitEnd) {
        self.in_flight = false;
        self.refused = end == CommitEnd::Refused;
        let after = match end {
            CommitEnd::Failed => REPEAT.min(self.interval),
            CommitEnd::Acknowledged | CommitEnd::Refused => self.interval,
        };
        self.next.as_mut().reset(Instant::now() + after);
    }

    /// Starts a commit, if one is due; at once with `now`.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
        now: bool,
    ) {
        if self.in_flight || !is_due(partitions) {
            return;
        }
        if now || self.next.as_mut().poll(cx).is_ready() {
            self.start(source, partitions);
        }
    }

    /// Commits what is finished of these partitions. Ready when all of it is committed, or cannot be.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl Source,
        partitions: &[Arc<Assignment>],
        repeated: &mut bool,
    ) -> Poll<()> {
        loop {
            if self.in_flight {
                return Poll::Pending;
            }
            if !is_due(partitions) || (*repeated && self.refused) {
                return Poll::Ready(());
            }
            if std::mem::replace(repeated, true) {
                ready!(self.next.as_mut().poll(cx));
            }
            self.start(source, partitions);
        }
    }

    fn start(&mut self, source: &mut impl Source, partitions: &[Arc<Assignment>]) {
        self.refused = false;
        self.in_flight = source.commit(partitions);
        if !self.in_flight {
            self.next.as_mut().reset(Instant::now() + REPEAT);
        }
    }
}

/// Returns whether anything of these is finished and not committed.
pub(super) fn is_due(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().any(|assignment| assignment.uncommitted().is_some())
}
