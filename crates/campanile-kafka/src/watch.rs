//! Whether the dispatcher's task is blocked by a handler that it runs itself.
//!
//! It cannot say so, and no timer of the runtime can: one whose thread is blocked may be the one that
//! serves the timers. So the consumer's thread looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use tokio::sync::Notify;

/// A handler that is found running twice, so far apart at least, has blocked its thread.
const LONG: Duration = Duration::from_millis(1);

/// How often it is looked while the consumer's thread waits.
const LOOK: Duration = Duration::from_millis(20);

/// What the dispatcher tells, and whom to call.
#[derive(Default)]
pub(crate) struct Watch {
    /// How often a handler was begun and ended: odd while one runs.
    runs: AtomicU64,
    /// What that was when one was found to be stuck.
    stuck: AtomicU64,
    called: Notify,
}

impl Watch {
    /// A handler is begun.
    pub(crate) fn begin(&self) {
        self.runs.fetch_add(1, Ordering::AcqRel);
    }

    /// It has given back the thread.
    pub(crate) fn end(&self) {
        self.runs.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until a handler is stuck.
    pub(crate) async fn stuck(&self) {
        loop {
            self.called.notified().await;
            if self.is_stuck() {
                return;
            }
        }
    }

    /// Whether the one that was found to be stuck still is.
    pub(crate) fn is_stuck(&self) -> bool {
        let runs = self.runs.load(Ordering::Acquire);
        !runs.is_multiple_of(2) && runs == self.stuck.load(Ordering::Acquire)
    }
}

/// Who looks.
#[derive(Default)]
pub(crate) struct Watcher {
    runs: u64,
    since: Duration,
}

impl Watcher {
    /// Calls the deputy if a handler is stuck.
    pub(crate) fn look(&mut self, watch: &Watch, now: Duration) {
        let runs = watch.runs.load(Ordering::Acquire);
        if runs.is_multiple_of(2) || runs != self.runs {
            (self.runs, self.since) = (runs, now);
        } else if now.saturating_sub(self.since) >= LONG {
            self.since = now;
            watch.stuck.store(runs, Ordering::Release);
            watch.called.notify_one();
        }
    }
}

/// Waits for the dispatcher or for brokers, on the consumer's thread, while another one looks.
pub(crate) fn looking<T>(watch: &Watch, wait: impl FnOnce() -> T) -> T {
    let (done, ended) = sync_channel::<()>(0);
    let look = move || {
        let (clock, mut watcher) = (Clock::boot(), Watcher::default());
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            watcher.look(watch, clock.now());
        }
    };
    thread::scope(|scope| {
        let looks = thread::Builder::new().name("campanile-watch".into()).spawn_scoped(scope, look);
        if let Err(error) = looks {
            tracing::warn!(%error, "no thread looks for handlers that block the dispatcher");
        }
        let waited = wait();
        drop(done);
        waited
    })
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn only_a_handler_that_is_found_running_twice_is_stuck() {
        let (watch, mut watcher) = (Watch::default(), Watcher::default());
        let mut stuck = task::spawn(watch.stuck());
        assert_pending!(stuck.poll());
        watcher.look(&watch, NOW);
        watch.begin();
        watcher.look(&watch, NOW + LONG);
        watch.end();
        watch.begin();
        watcher.look(&watch, NOW + LONG * 2);
        watcher.look(&watch, NOW + LONG * 2 + LONG / 2);
        assert!(!stuck.is_woken() && !watch.is_stuck());
        watcher.look(&watch, NOW + LONG * 3);
        assert!(watch.is_stuck());
        assert_ready!(stuck.poll());
    }

    #[test]
    fn a_stuck_handler_is_found_while_the_consumers_thread_waits() {
        let watch = Watch::default();
        watch.begin();
        looking(&watch, || {
            let late = Clock::boot();
            let start = late.now();
            while !watch.is_stuck() {
                assert!(late.now() - start < Duration::from_secs(30), "nobody looks");
                thread::yield_now();
            }
        });
    }

    #[test]
    fn one_that_has_ended_when_the_deputy_comes_is_not_stuck() {
        let (watch, mut watcher) = (Watch::default(), Watcher::default());
        let mut stuck = task::spawn(watch.stuck());
        watch.begin();
        watcher.look(&watch, NOW);
        watcher.look(&watch, NOW + LONG);
        watch.end();
        assert_pending!(stuck.poll());
        watch.begin();
        assert!(!watch.is_stuck());
    }
}
