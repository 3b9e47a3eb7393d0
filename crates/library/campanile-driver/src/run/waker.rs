//! Wake-ups of attempts that a blocked handler cannot delay.
//!
//! tokio puts a task that is woken on one of its worker threads into the LIFO slot of that worker,
//! from which no other worker takes it. If the handler that woke the task (by releasing a mutex, a
//! semaphore or a channel) then blocks its thread, the task is stuck although other threads are
//! idle. A wake-up from within another attempt's poll is therefore made by the scheduler's thread.
//! This thread is not a worker, so a task that it wakes enters the queue that all workers share.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::task::Context;

use futures_util::task::{ArcWake, AtomicWaker, waker_ref};

use crate::reports::Reports;

thread_local! {
    /// The attempt that this thread is polling.
    static POLLING: Cell<*const AttemptWaker> = const { Cell::new(ptr::null()) };
}

/// The waker of one attempt's task.
pub(crate) struct AttemptWaker {
    task: AtomicWaker,
    reports: Arc<Reports>,
}

impl AttemptWaker {
    pub(super) fn new(reports: Arc<Reports>) -> Arc<Self> {
        Arc::new(Self { task: AtomicWaker::new(), reports })
    }

    /// Polls user code as part of the task of `cx`. The user code is woken through this waker.
    pub(crate) fn poll<T>(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        self.task.register(cx.waker());
        let _polling = Polling::enter(Arc::as_ptr(self));
        poll(&mut Context::from_waker(&waker_ref(self)))
    }
}

impl ArcWake for AttemptWaker {
    fn wake_by_ref(this: &Arc<Self>) {
        let polling = POLLING.get();
        // A task that wakes itself goes to the back of its worker's queue, where other workers find
        // it.
        if polling.is_null() || ptr::eq(polling, Arc::as_ptr(this)) {
            this.task.wake();
        } else if let Some(task) = this.task.take() {
            this.reports.wake_from_scheduler(task);
        }
    }
}

/// Restores the attempt that the thread was polling before, since attempts may be nested.
struct Polling(*const AttemptWaker);

impl Polling {
    fn enter(attempt: *const AttemptWaker) -> Self {
        Self(POLLING.replace(attempt))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Poll, Waker};

    use tokio_test::task;

    use super::*;

    #[test]
    fn wake_from_another_attempt_goes_through_the_scheduler() {
        let reports = Arc::new(Reports::default());
        let (one, other) = (AttemptWaker::new(reports.clone()), AttemptWaker::new(reports.clone()));
        let kept = Cell::new(None);
        let mut waiting = task::spawn(poll_fn(|cx| {
            one.poll(cx, |cx| kept.set(Some(cx.waker().clone())));
            Poll::<()>::Pending
        }));
        assert!(waiting.poll().is_pending());
        let mut noop = Context::from_waker(Waker::noop());
        let kept = kept.take().expect("the future was polled");
        other.poll(&mut noop, |_| kept.wake_by_ref());
        assert!(!waiting.is_woken());
        assert!(reports.take(&mut noop, &mut Vec::new()));
        assert!(waiting.is_woken());
    }

    #[test]
    fn wake_from_outside_or_self_is_direct() {
        let reports = Arc::new(Reports::default());
        let waker = AttemptWaker::new(reports);
        let mut waiting = task::spawn(poll_fn(|cx| {
            waker.poll(cx, |cx| cx.waker().wake_by_ref());
            Poll::<()>::Pending
        }));
        assert!(waiting.poll().is_pending());
        assert!(waiting.is_woken());
    }
}
