//! Records that wait for their next attempt.

use std::task::{Context, Poll};
use std::time::Duration;

use campanile_idempotency::Settled;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::slot::SlotId;

/// Names one wait: one that was given up meanwhile ends unheard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitId(u64);

/// All waits: one for each lane at most, since the record at work holds up its lane.
#[derive(Default)]
pub(super) struct Waits {
    waits: FuturesUnordered<BoxFuture<'static, (SlotId, WaitId)>>,
    next: u64,
}

impl Waits {
    /// Waits for so long, or until the key's holder in this process has ended.
    pub(super) fn start(
        &mut self,
        slot: SlotId,
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
            (slot, id)
        }));
        id
    }

    /// The next that is over.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(SlotId, WaitId)> {
        match self.waits.poll_next_unpin(cx) {
            Poll::Ready(Some(over)) => Poll::Ready(over),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
