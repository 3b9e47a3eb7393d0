//! Records that wait for their next attempt.

use std::task::{Context, Poll};
use std::time::Duration;

use campanile_idempotency::Settled;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::strand::StrandId;

/// Names one wait: one that was given up meanwhile ends unheard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitId(u64);

/// All waits: one for each strand at most, since the first of its records holds up the others.
#[derive(Default)]
pub(super) struct Waits {
    waits: FuturesUnordered<BoxFuture<'static, (StrandId, WaitId)>>,
    next: u64,
}

impl Waits {
    /// Waits for so long, or until the key's holder in this process has ended.
    pub(super) fn start(
        &mut self,
        strand: StrandId,
        after: Duration,
        settled: Option<Settled>,
    ) -> WaitId {
        let id = WaitId(self.next);
        self.next += 1;
        self.waits.push(Box::pin(async move {
            match settled {
                // Whichever comes first: after both the key is tried again.
                Some(settled) => drop(tokio::time::timeout(after, settled).await),
                None => tokio::time::sleep(after).await,
            }
            (strand, id)
        }));
        id
    }

    /// The next that is over.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(StrandId, WaitId)> {
        match self.waits.poll_next_unpin(cx) {
            Poll::Ready(Some(over)) => Poll::Ready(over),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
