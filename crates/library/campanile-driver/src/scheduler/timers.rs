//! Timers of records that wait for their next attempt.

use std::task::{Context, Poll};
use std::time::Duration;

use campanile_idempotency::SettledFuture;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::reports::QueueId;

/// Identifies a timer. An outdated timer fires without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(u64);

/// All timers. A queue has at most one current timer, since its first record holds up the others.
#[derive(Default)]
pub(crate) struct Timers {
    timers: FuturesUnordered<BoxFuture<'static, (QueueId, TimerId)>>,
    next: u64,
}

impl Timers {
    /// Starts a timer that fires after this time, or as soon as the key's holder in this process
    /// has ended.
    pub(super) fn start(
        &mut self,
        queue: QueueId,
        after: Duration,
        settled: Option<SettledFuture>,
    ) -> TimerId {
        let id = TimerId(self.next);
        self.next += 1;
        self.timers.push(Box::pin(async move {
            match settled {
                // The key is tried again in either case.
                Some(settled) => drop(tokio::time::timeout(after, settled).await),
                None => tokio::time::sleep(after).await,
            }
            (queue, id)
        }));
        id
    }

    /// Polls for the next timer that has fired.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(QueueId, TimerId)> {
        match self.timers.poll_next_unpin(cx) {
            Poll::Ready(Some(fired)) => Poll::Ready(fired),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
