//! Reports from attempts to the scheduler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use futures_util::task::AtomicWaker;

use super::assignment::AssignmentId;
use super::attempt::RecordOutcome;
use super::scheduler::QueueId;
use super::sink::Item;
use crate::order::OrderKey;

/// The number of pending reports that wakes the scheduler even if none is urgent.
const WAKE_THRESHOLD: usize = 64;

/// A queue of reports from the program's runtime to the scheduler's thread. It also has the wakers
/// of tasks that the scheduler's thread wakes on behalf of attempts.
#[derive(Default)]
pub struct Reports {
    inbox: Mutex<Inbox>,
    scheduler: AtomicWaker,
}

#[derive(Default)]
struct Inbox {
    reports: Vec<Report>,
    wakes: Vec<Waker>,
}

/// An event of a queue's run, or of a partition.
pub enum Report {
    /// The run's first record is processed, and the next one is started.
    Processed { queue: QueueId, item: Option<Item> },
    /// The run has ended. The outcome is that of its first record.
    RunEnded { queue: QueueId, outcome: RecordOutcome },
    /// The run was stopped before its first record was started.
    RunStopped { queue: QueueId },
    /// The run's record waits until its service is ready.
    NotReady { queue: QueueId },
    /// The run's record no longer waits for its service.
    Ready { queue: QueueId },
    /// The order's extractor has determined the keys of the oldest keyless records.
    KeysExtracted { assignment: AssignmentId, keys: Vec<OrderKey> },
}

impl Reports {
    /// Sends a report and wakes the scheduler.
    pub(crate) fn send(&self, report: Report) {
        self.inbox().reports.push(report);
        self.scheduler.wake();
    }

    /// Sends a report that can wait until the scheduler is woken by something else.
    pub(crate) fn send_lazily(&self, report: Report) {
        let pending = {
            let mut inbox = self.inbox();
            inbox.reports.push(report);
            inbox.reports.len()
        };
        if pending == WAKE_THRESHOLD {
            self.scheduler.wake();
        }
    }

    /// Makes the scheduler's thread wake this task.
    pub(super) fn wake_from_scheduler(&self, task: Waker) {
        self.inbox().wakes.push(task);
        self.scheduler.wake();
    }

    /// Moves all reports to `reports`, and wakes the tasks that are to be woken from this thread.
    /// Returns whether there were any reports or wakers.
    pub(super) fn take(&self, cx: &mut Context<'_>, reports: &mut Vec<Report>) -> bool {
        // Register the waker before taking the reports, so that no report is missed.
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

/// Reports the progress of one run.
pub(crate) struct Reporter {
    pub(crate) queue: QueueId,
    pub(crate) reports: Arc<Reports>,
}

impl Reporter {
    /// Reports the outcome of the run's first record, which ends the run.
    pub(crate) fn end_run(self, outcome: RecordOutcome) {
        self.reports.send(Report::RunEnded { queue: self.queue, outcome });
    }
}
