//! What must go on although the program's runtime is blocked, or has ended.

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

/// How long the background tries to settle what is left once all handles are gone.
const CLOSING: Duration = Duration::from_secs(30);

/// Renews, notices lost locks, gives up calls that take too long, and sends what no caller's runtime
/// sends. Dropped, it loses all locks.
pub(super) struct Background {
    shared: Arc<Shared>,
    /// A handle of its own: no connection of it depends on the program's runtime.
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
            // What was answered in time is not given up, although this is late itself.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.answered(id, answers));
            }
            let (Due { batches, alarm, is_idle }, start) = shared.change(|state| state.due());
            // Those that were given up end before another command for their keys begins.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.answered(id, answers));
            }
            start.into_iter().for_each(|start| shared.leave_to_background(start));
            for (batch, abort) in batches {
                let id = batch.id;
                let call = Abortable::new(store.clone().call(batch), abort);
                calls.push(call.map(move |answers| (id, answers.unwrap_or(Err("given up")))));
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
            // Each round begins with what is answered, so none of these starves.
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
    /// Changes the state. No call of the program's store begins here.
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
