//! Reports from attempts to the scheduler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use campanile_core::BoxError;
use campanile_core::telemetry::ErrorType;
use futures_util::task::AtomicWaker;

use crate::epilogue::EpilogueResult;
use crate::error::error_type;
use crate::flood_limit::FloodPermit;
use crate::order::OrderKey;
use crate::source::{AssignmentId, Item};

/// The number of pending reports that wakes the scheduler even if none is urgent.
const WAKE_THRESHOLD: usize = 64;

/// A queue of reports from the program's runtime to the scheduler's thread. It also has the wakers
/// of tasks that the scheduler's thread wakes on behalf of attempts.
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

/// An event of a queue's run, or of a partition.
pub(crate) enum Report {
    /// The run's first record is processed, and the next one is started.
    Processed { queue: QueueId, item: Option<Item> },
    /// The run has ended. The outcome is that of its first record.
    RunEnded { queue: QueueId, outcome: RunOutcome },
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
    pub(crate) fn wake_from_scheduler(&self, task: Waker) {
        self.inbox().wakes.push(task);
        self.scheduler.wake();
    }

    /// Moves all reports to `reports`, and wakes the tasks that are to be woken from this thread.
    /// Returns whether there were any reports or wakers.
    pub(crate) fn take(&self, cx: &mut Context<'_>, reports: &mut Vec<Report>) -> bool {
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

/// Identifies a queue while it has records. A late report about a removed queue finds no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct QueueId {
    pub(crate) index: usize,
    pub(crate) generation: u64,
}

#[cfg(test)]
impl QueueId {
    pub(crate) const fn numbered(index: usize) -> Self {
        Self { index, generation: 0 }
    }

    pub(crate) const fn index(self) -> usize {
        self.index
    }
}

/// The outcome of a run's first record, or of other work on it.
#[derive(Debug)]
pub(crate) enum RunOutcome {
    /// The service returned `Ok`.
    Processed { item: Option<Item> },
    /// The service returned `Ok`, but what the record hands over is unknown.
    InvalidResponse(BoxError),
    /// The service returned an error.
    Failed(BoxError),
    /// The service panicked, or the drop of its future did.
    Panicked(String),
    /// The service will never be ready again.
    ServiceFailed(BoxError),
    /// The record was given up, and its entry, if it has one, was updated.
    Skipped,
    /// The record, which was given up for an error of this type, was taken over.
    GivenUp(EpilogueResult, FloodPermit, ErrorType),
    /// The record, whose attempt had failed, was taken over.
    Deferred(EpilogueResult),
    /// The consumer stops at the record. The record's lock is released.
    StoppedAt,
    /// The consumer is paused at the record. The record's lock is released.
    PausedAt,
}

impl RunOutcome {
    /// Returns the type of the error with which an attempt has ended.
    pub(crate) fn error_type(&self) -> Option<ErrorType> {
        match self {
            Self::Processed { .. } => None,
            Self::Failed(error) => Some(error_type(&**error)),
            Self::Panicked(_) => Some(ErrorType::Panicked),
            _ => Some(ErrorType::Other),
        }
    }
}

/// Reports the progress of one run.
pub(crate) struct Reporter {
    pub(crate) queue: QueueId,
    pub(crate) reports: Arc<Reports>,
}

impl Reporter {
    /// Reports the outcome of the run's first record, which ends the run.
    pub(crate) fn end_run(self, outcome: RunOutcome) {
        self.reports.send(Report::RunEnded { queue: self.queue, outcome });
    }
}
