//! Draining of partitions before they are released: records in flight may finish, all others are
//! dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::{Instant, Sleep};

use crate::driver::LOCK_RELEASE_TIMEOUT;
use crate::driver::assignment::AssignmentId;
use crate::driver::task::Task;

/// A set of partitions of which no further records are started.
pub(super) struct Drain {
    /// The partitions that still have records in flight.
    pub(super) partitions: Vec<AssignmentId>,
    phase: Phase,
}

enum Phase {
    /// Records in flight may finish until this deadline.
    Finishing(Pin<Box<Sleep>>),
    /// The records in flight were dropped, and their locks are being released.
    Releasing(BoxFuture<'static, ()>),
}

impl Drain {
    pub(super) fn new(partitions: Vec<AssignmentId>, timeout: Duration) -> Self {
        Self { partitions, phase: Phase::Finishing(Box::pin(tokio::time::sleep(timeout))) }
    }

    /// Polls the deadline. Ready once it has passed with records still in flight.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(sleep) => sleep.as_mut().poll(cx),
            Phase::Releasing(_) => Poll::Pending,
        }
    }

    /// Moves the deadline to now.
    pub(super) fn expire(&mut self) {
        if let Phase::Finishing(sleep) = &mut self.phase {
            sleep.as_mut().reset(Instant::now());
        }
    }

    /// Drops these tasks, then waits until the locks of their records are released.
    pub(super) fn cancel(&mut self, tasks: Vec<(Task<()>, Vec<Record>)>) {
        let each = tasks.into_iter().map(|(task, records)| async move {
            task.cancel().await;
            join_all(records.iter().map(Record::let_go)).await;
        });
        let all = join_all(each);
        self.phase = Phase::Releasing(Box::pin(async move {
            if tokio::time::timeout(LOCK_RELEASE_TIMEOUT, all).await.is_err() {
                tracing::warn!("timed out releasing locks; they will expire");
            }
        }));
    }

    /// Polls for the end of the drain.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(_) if self.partitions.is_empty() => Poll::Ready(()),
            Phase::Finishing(_) => Poll::Pending,
            Phase::Releasing(all) => all.as_mut().poll(cx),
        }
    }
}
