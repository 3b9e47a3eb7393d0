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
use super::shared::KeeperShared;
use super::state::{BackgroundWork, KeeperState};

/// How long the background tries to settle the remaining locks after all handles are dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the background sleeps at most while there is work. A runtime's timers stand still while
/// the machine is suspended, and the keeper's clock does not, so a sleep that began before would end
/// too late for the locks.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Renews locks, detects lost ones, aborts calls that take too long, and sends commands that no
/// caller's runtime sends. Dropping it loses all locks.
pub(super) struct Background {
    shared: Arc<KeeperShared>,
    /// A separate handle: none of its connections depends on the application's runtime.
    store: Arc<dyn Callable>,
    clock: Clock,
}

impl Background {
    pub(super) fn new(shared: Arc<KeeperShared>, store: Arc<dyn Callable>, clock: Clock) -> Self {
        Self { shared, store, clock }
    }

    pub(super) async fn run(self) {
        let Self { shared, store, clock } = &self;
        let mut calls = FuturesUnordered::new();
        let mut close_deadline = None;
        loop {
            // Process answers that have already arrived, so that they are not discarded if this
            // task is late.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.handle_answers(id, answers));
            }
            let (BackgroundWork { batches, wake_at, is_idle }, start) =
                shared.change(|state| state.take_background_work());
            // Let aborted calls end before another command for their keys is sent.
            while let Some(Some((id, answers))) = calls.next().now_or_never() {
                self.update(|state| state.handle_answers(id, answers));
            }
            start.into_iter().for_each(|start| shared.hand_to_background(start));
            for (batch, abort) in batches {
                let id = batch.id;
                let call = Abortable::new(store.clone().call(batch), abort);
                calls.push(
                    call.map(move |answers| (id, answers.unwrap_or(Err("the call was aborted")))),
                );
            }
            let now = clock.now();
            if wake_at <= now {
                yield_now().await;
                continue;
            }
            if shared.is_closed() {
                if is_idle {
                    return;
                }
                if now >= *close_deadline.get_or_insert(now + CLOSE_TIMEOUT) {
                    tracing::warn!("lock keeper stopped with unsettled locks");
                    return;
                }
            }
            let wake_at = close_deadline.map_or(wake_at, |deadline| deadline.min(wake_at));
            let time_left = match wake_at {
                Duration::MAX => Duration::MAX,
                _ => (wake_at - now).min(MAX_SLEEP),
            };
            // Each iteration starts with the answers that have arrived, so `biased` starves no
            // branch.
            tokio::select! {
                biased;
                () = shared.woken() => {}
                Some((id, answers)) = calls.next() => {
                    self.update(|state| state.handle_answers(id, answers));
                }
                () = sleep(time_left) => {}
            }
        }
    }
}

impl Background {
    /// Changes the state. Resulting calls on the application's store handle do not start here.
    fn update(&self, change: impl FnOnce(&mut KeeperState)) {
        let ((), start) = self.shared.change(change);
        start.into_iter().for_each(|start| self.shared.hand_to_background(start));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.update(|state| state.stop());
    }
}
