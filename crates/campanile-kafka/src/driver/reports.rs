//! What attempts report to the scheduler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use campanile_core::Output;
use futures_util::task::AtomicWaker;

use super::assignment::AssignmentId;
use super::attempt::Outcome;
use super::scheduler::QueueId;
use crate::order::OrderKey;

/// With this many reports pending, the scheduler is woken even if none is urgent.
const FULL: usize = 64;

/// A queue of reports from the program's runtime to the scheduler's thread, and of wake-ups that the
/// scheduler's thread makes on behalf of attempts.
#[derive(Default)]
pub(crate) struct Reports {
    inbox: Mutex<Inbox>,
    scheduler: AtomicWaker,
}

#[derive(Default)]
struct Inbox {
    reports: Vec<Report>,
    wakes: Vec<Waker>,
}

/// What has happened to a queue's run, or to a partition.
pub(crate) enum Report {
    /// The run's first record is processed, and its next one is started.
    Processed { queue: QueueId, outputs: Vec<Output> },
    /// The run has ended with this outcome of its first record.
    Ended { queue: QueueId, outcome: Outcome },
    /// The run was stopped before its first record was started.
    Stopped { queue: QueueId },
    /// The run's record waits until its service is ready.
    NotReady { queue: QueueId },
    /// It waits no longer.
    Ready { queue: QueueId },
    /// The order's extractor has found the keys of the oldest records without one.
    Keyed { assignment: AssignmentId, keys: Vec<OrderKey> },
}

impl Reports {
    /// Sends a report that the scheduler acts upon at once.
    pub(crate) fn send(&self, report: Report) {
        self.inbox().reports.push(report);
        self.scheduler.wake();
    }

    /// Sends a report that can wait until the scheduler wakes for something else.
    pub(crate) fn send_lazily(&self, report: Report) {
        let pending = {
            let mut inbox = self.inbox();
            inbox.reports.push(report);
            inbox.reports.len()
        };
        if pending == FULL {
            self.scheduler.wake();
        }
    }

    /// Has the scheduler's thread wake this task.
    pub(super) fn wake_from_scheduler(&self, task: Waker) {
        self.inbox().wakes.push(task);
        self.scheduler.wake();
    }

    /// Moves all reports to `reports`, and wakes what is to be woken from here. Returns whether there
    /// was anything.
    pub(super) fn take(&self, cx: &mut Context<'_>, reports: &mut Vec<Report>) -> bool {
        // Register first, so that what arrives after the look wakes the scheduler.
        self.scheduler.register(cx.waker());
        let wakes = {
            let mut inbox = self.inbox();
            reports.append(&mut inbox.reports);
            std::mem::take(&mut inbox.wakes)
        };
        let any = !reports.is_empty() || !wakes.is_empty();
        wakes.into_iter().for_each(Waker::wake);
        any
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports about one run.
pub(crate) struct Reporter {
    pub(crate) queue: QueueId,
    pub(crate) reports: Arc<Reports>,
}

impl Reporter {
    /// Reports how the run's first record ended, which ends the run.
    pub(crate) fn ended(self, outcome: Outcome) {
        self.reports.send(Report::Ended { queue: self.queue, outcome });
    }
}
