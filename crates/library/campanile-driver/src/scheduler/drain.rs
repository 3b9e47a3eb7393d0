//! Drains partitions on a revoke and on shutdown: records in flight may finish, all others are dropped. What
//! follows stands in [`revocation`](crate::event_loop::revocation) and
//! [`shutdown`](crate::event_loop::shutdown).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::{Instant, Sleep};

use crate::reports::QueueId;
use crate::run::{LOCK_RELEASE_TIMEOUT, Task};
use crate::scheduler::Scheduler;
use crate::scheduler::queue::{Queue, QueueState, Queued};
use crate::source::{Assignment, AssignmentId};

/// Identifies a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainId(u64);

/// A set of partitions of which no further records are started.
pub(crate) struct Drain {
    /// The partitions that still have records in flight.
    pub(crate) partitions: Vec<AssignmentId>,
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
    pub(crate) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(sleep) => sleep.as_mut().poll(cx),
            Phase::Releasing(_) => Poll::Pending,
        }
    }

    /// Moves the deadline to now.
    pub(crate) fn expire(&mut self) {
        if let Phase::Finishing(sleep) = &mut self.phase {
            sleep.as_mut().reset(Instant::now());
        }
    }

    /// Drops these tasks, then waits until the locks of their records are released.
    pub(crate) fn cancel(&mut self, tasks: Vec<(Task<()>, Vec<Record>)>) {
        let each = tasks.into_iter().map(|(task, records)| async move {
            task.cancel().await;
            join_all(records.iter().map(|record| record.attempt().lock_released())).await;
        });
        let all = join_all(each);
        self.phase = Phase::Releasing(Box::pin(async move {
            if tokio::time::timeout(LOCK_RELEASE_TIMEOUT, all).await.is_err() {
                tracing::warn!("timed out releasing locks; they will expire");
            }
        }));
    }

    /// Polls for the end of the drain.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(_) if self.partitions.is_empty() => Poll::Ready(()),
            Phase::Finishing(_) => Poll::Pending,
            Phase::Releasing(all) => all.as_mut().poll(cx),
        }
    }
}

impl Scheduler {
    /// Drains revoked partitions. Records in flight may finish within `timeout`.
    pub(crate) fn on_revoked(
        &mut self,
        partitions: &[Arc<Assignment>],
        timeout: Duration,
    ) -> DrainId {
        self.drain(partitions.iter().map(|assignment| assignment.id).collect(), timeout)
    }

    /// Drains all partitions for the shutdown. Records in flight may finish within `timeout`.
    pub(crate) fn stop(&mut self, timeout: Duration) {
        self.stopping = true;
        let partitions = self.partitions.keys().copied().collect();
        self.drain(partitions, timeout);
    }

    /// Moves the deadline of every drain to now.
    pub(crate) fn expire_drains(&mut self) {
        self.drains.iter_mut().for_each(|(_, drain)| drain.expire());
    }

    /// Checks whether this drain has ended. During the shutdown its records may belong to another
    /// drain, so all drains must have ended then.
    pub(crate) fn is_drain_finished(&self, id: DrainId) -> bool {
        self.drains.iter().all(|(other, _)| *other != id) && (!self.stopping || self.is_drained())
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drains.is_empty()
    }

    /// Stops starting records of these partitions, and drops their records that are not in flight.
    fn drain(&mut self, partitions: Vec<AssignmentId>, timeout: Duration) -> DrainId {
        let mut any = false;
        for id in &partitions {
            // A partition that was assigned during the shutdown was never added.
            if let Some(partition) = self.partitions.get_mut(id) {
                partition.assignment.stop();
                any |= !std::mem::replace(&mut partition.draining, true);
            }
        }
        if any {
            self.on_drain_started();
        }
        let id = DrainId(self.next_drain);
        self.next_drain += 1;
        self.drains.push((id, Drain::new(partitions, timeout)));
        id
    }

    /// Drops the records of draining partitions that are not in flight, and lets others use their share
    /// of the in-flight limit.
    pub(crate) fn on_drain_started(&mut self) {
        self.drop_pending();
        let others = self.partitions.values_mut().filter(|partition| !partition.draining);
        let limited = others.flat_map(|partition| std::mem::take(&mut partition.limited));
        let limited: Vec<QueueId> = limited.collect();
        self.enqueue_all(limited);
    }

    /// Drops the records of draining partitions that are not in flight.
    fn drop_pending(&mut self) {
        let mut ended = Vec::new();
        for (id, queue) in self.queues.iter_mut() {
            let Some(partition) = self.partitions.get(&queue.assignment).filter(|p| p.draining)
            else {
                continue;
            };
            let amount = queue.drop_pending();
            partition.drop_records(amount, self.stopping);
            if queue.records.is_empty() {
                ended.push(id);
            }
        }
        for partition in self.partitions.values_mut().filter(|partition| partition.draining) {
            let keyless = std::mem::take(&mut partition.keyless);
            let amount = keyless.records.iter().map(Queued::amount).sum();
            partition.drop_records(amount, self.stopping);
        }
        ended.into_iter().for_each(|id| drop(self.remove(id)));
        self.waiting_for_resume.retain(|id| self.queues.get_mut(*id).is_some());
    }

    /// Polls the drains; returns whether any has ended.
    pub(crate) fn poll_drains(&mut self, cx: &mut Context<'_>) -> bool {
        let mut drains = std::mem::take(&mut self.drains);
        let before = drains.len();
        drains.retain_mut(|(_, drain)| {
            drain.partitions.retain(|id| {
                let busy = self.partitions.get(id).is_some_and(|partition| partition.in_flight > 0);
                if !busy {
                    self.partitions.remove(id);
                }
                busy
            });
            if !drain.partitions.is_empty() && drain.poll_deadline(cx).is_ready() {
                let tasks = self.remove_partitions(&drain.partitions);
                drain.partitions.clear();
                drain.cancel(tasks);
            }
            drain.poll_end(cx).is_pending()
        });
        self.drains = drains;
        self.drains.len() < before
    }

    /// Removes these partitions. Returns their tasks in flight, each with its records.
    fn remove_partitions(&mut self, partitions: &[AssignmentId]) -> Vec<(Task<()>, Vec<Record>)> {
        let of_these = |queue: &Queue| partitions.contains(&queue.assignment);
        let ids = self.queues.iter_mut().filter(|(_, queue)| of_these(queue)).map(|(id, _)| id);
        let ids: Vec<QueueId> = ids.collect();
        let mut tasks = Vec::new();
        for id in ids {
            let queue = self.remove(id);
            if let Some(partition) = self.partitions.get(&queue.assignment) {
                partition.drop_records(queue.amount(), self.stopping);
            }
            let running = queue.records.iter().take(queue.running);
            let records = running.map(|queued| queued.record.clone()).collect();
            match queue.state {
                QueueState::Running(task) => {
                    self.in_flight -= 1;
                    tasks.push((task, records));
                }
                QueueState::NotReady { task, route } => {
                    self.run_queue.unblock(route);
                    tasks.push((task, records));
                }
                _ => {}
            }
        }
        partitions.iter().for_each(|id| drop(self.partitions.remove(id)));
        tasks
    }
}
