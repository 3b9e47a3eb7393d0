//! The work that must continue even if the application's runtime is blocked or has ended.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::Clock;
use futures_util::future::Abortable;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::calls::Callable;
use super::shared::Shared;
use super::state::{Due, State};

/// How long the background tries to settle the remaining locks after all handles are dropped.
const CLOSING: Duration = Duration::from_secs(30);

/// Renews locks, detects lost ones, aborts calls that take too long, and sends commands that no
/// caller's runtime sends. Dropping it loses all locks.
pub(super) struct Background {
    shared: Arc<Shared>,
    /// A separate handle: none of its connections depends on the application's runtime.
    store: Arc<dyn Callable>,
    clock: Clock,
}

impl Background {
    pub(super) fn new(shared: Arc<Shared>, store: Arc<dyn Callable>, clock: Clock) -> Self {
        Self { shared, store, clock }
    }

    pub(super) async fn run(self) {
        let Self { shared, store, clock } = &self;
        let mut calls = FuturesUnordered::new();
        let mut closing = None;
        loop {
            // Process answers that have already arrived, so that they are not discarded if this
            // task is late.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.answered(id, answers));
            }
            let (Due { batches, alarm, is_idle }, start) = shared.change(|state| state.due());
            // Let aborted calls end before another command for their keys is sent.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.answered(id, answers));
            }
            start.into_iter().for_each(|start| shared.leave_to_background(start));
            for (batch, abort) in batches {
                let id = batch.id;
                let call = Abortable::new(store.clone().call(batch), abort);
                calls.push(
                    call.map(move |answers| (id, answers.unwrap_or(Err("the call was aborted")))),
                );
            }
            let now = clock.now();
            if alarm <= now {
                yield_now().await;
                continue;
            }
            if shared.is_closed() {
                if is_idle {
                    return;
                }
                if now >= *closing.get_or_insert(now + CLOSING) {
                    tracing::warn!("lock keeper stopped with unsettled locks");
                    return;
                }
            }
            let alarm = closing.map_or(alarm, |closing| closing.min(alarm));
            // Each iteration starts with the answers that have arrived, so `biased` starves no
            // branch.
            tokio::select! {
                biased;
                () = shared.woken() => {}
                Some((id, answers)) = calls.next() => {
                    self.update(|state| state.answered(id, answers));
                }
                () = sleep(alarm.saturating_sub(now)) => {}
            }
        }
    }
}

impl Background {
    /// Changes the state. Resulting calls on the application's store handle do not start here.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let ((), start) = self.shared.change(change);
        start.into_iter().for_each(|start| self.shared.leave_to_background(start));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.update(|state| state.stop());
    }
}
