//! The scheduler: which record is started next, and what follows when it has ended.
//!
//! Each partition has queues, of which one record at a time is in flight: one queue for the whole
//! partition, for each key, or for each record, as the order says. Queues that are due stand in the run
//! queue. No user code runs here.

mod breaker;
mod dispatch;
mod drain;
mod draining;
mod give_up;
mod outcome;
mod partition;
mod queue;
mod receive;
mod retry;
mod run_queue;
mod stall_report;
mod stalls;
mod timers;
mod trouble;

use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::{ConfigError, Record};
use tokio::runtime::Handle;

use self::breaker::Breaker;
use self::drain::Drain;
pub(super) use self::draining::DrainId;
use self::partition::Partition;
pub(crate) use self::queue::QueueId;
use self::queue::{Queue, Queues, State};
use self::run_queue::RunQueue;
use self::stalls::Stalls;
use self::timers::Timers;
use super::assignment::{Assignment, AssignmentId};
use super::budget::Amount;
use super::control::Switch;
use super::hash::ByNumber;
use super::reports::{Report, Reporter, Reports};
#[cfg(test)]
use super::simulation::{Bug, is_planted};
use super::task::Task;
use crate::error::ConsumerError;
use crate::flood::Flood;
use crate::given_up::Fate;
use crate::policies::Policies;
use crate::routes::Router;
use crate::summary::Summary;

/// The most records that a run is given. A longer one saves nothing more.
const RUN: usize = 64;

/// What the scheduler starts attempts with.
pub(crate) struct Services {
    pub(crate) router: Router,
    pub(crate) runtime: Handle,
    pub(crate) group: Arc<str>,
}

pub(super) struct Scheduler {
    partitions: ByNumber<AssignmentId, Partition>,
    queues: Queues,
    run_queue: RunQueue,
    /// How many queues are in flight, without those whose service is not ready.
    in_flight: usize,
    timers: Timers,
    breaker: Breaker,
    /// Queues whose record the store has not answered, and some that it has since.
    unanswered: Vec<QueueId>,
    stalls: Stalls,
    drains: Vec<(DrainId, Drain)>,
    next_drain: u64,
    stopping: bool,
    /// Outputs fill the budget: only each partition's oldest unfinished record is started.
    outputs_full: bool,
    switch: Switch,
    flood: Flood,
    policies: Policies,
    services: Services,
    reports: Arc<Reports>,
    summary: Summary,
}

impl Scheduler {
    pub(super) fn new(
        policies: Policies,
        services: Services,
        switch: Switch,
        reports: Arc<Reports>,
    ) -> Self {
        Self {
            partitions: ByNumber::default(),
            queues: Queues::default(),
            run_queue: RunQueue::default(),
            in_flight: 0,
            timers: Timers::default(),
            breaker: Breaker::default(),
            unanswered: Vec::new(),
            stalls: Stalls::new(policies.stall),
            drains: Vec::new(),
            next_drain: 0,
            stopping: false,
            outputs_full: false,
            switch,
            flood: Flood::new(policies.flood_guard),
            policies,
            services,
            reports,
            summary: Summary::default(),
        }
    }

    /// Adds a partition that is assigned.
    ///
    /// # Errors
    /// If it may not be consumed, since the dead letters of another topic go there.
    pub(super) fn assigned(&mut self, assignment: Arc<Assignment>) -> Result<(), ConfigError> {
        if let Fate::DeadLetter(letters) = &self.policies.given_up {
            self.policies.targets.add(letters, &assignment.topic)?;
        }
        // One that comes during the shutdown is not consumed.
        if !self.stopping {
            let partition = Partition::new(assignment.clone(), self.policies.commits_start);
            self.partitions.insert(assignment.id, partition);
        }
        Ok(())
    }

    /// Takes in what an attempt reports.
    ///
    /// # Errors
    /// If the consumer is to stop.
    pub(super) fn report(&mut self, report: Report) -> Result<(), ConsumerError> {
        match report {
            Report::Processed { queue, outputs } => self.processed(queue, outputs, false),
            Report::Ended { queue, outcome } => return self.ended(queue, outcome),
            Report::Stopped { queue } => self.stopped(queue),
            Report::NotReady { queue } => self.not_ready(queue),
            Report::Ready { queue } => self.ready(queue),
            Report::Keyed { assignment, keys } => self.keyed(assignment, keys),
        }
        Ok(())
    }

    /// Polls timers, drains, the breaker and the switch. Returns whether anything has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.breaker.poll(cx).is_ready();
        if self.breaker.take_recovered() {
            self.list_unanswered();
        }
        if self.switch.poll_resumed(cx) {
            self.flood.clear();
            changed = true;
        }
        while let Poll::Ready((id, timer)) = self.timers.poll_next(cx) {
            changed = true;
            if let Some(queue) = self.queues.get_mut(id)
                && matches!(queue.state, State::Waiting(of) if of == timer)
            {
                #[cfg(test)]
                match queue.records.len() {
                    _ if is_planted(Bug::LostWake) => continue,
                    2.. if is_planted(Bug::OrderAfterRetry) => queue.records.swap(0, 1),
                    _ => {}
                }
                self.list(id);
            }
        }
        changed |= self.poll_drains(cx);
        self.switch.suspend(self.breaker.is_open() || self.outputs_full);
        changed
    }

    /// Sets whether outputs fill the budget. They wait for the oldest unfinished record of their
    /// partition, so only those records are started then.
    pub(super) fn set_outputs_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.outputs_full, full) && !full {
            let far = self.far();
            let near = self.partitions.values_mut().flat_map(|partition| partition.take_near(far));
            let near: Vec<QueueId> = near.collect();
            self.list_all(near);
        }
    }

    pub(super) fn outputs_full(&self) -> bool {
        self.outputs_full
    }

    pub(super) fn switch(&mut self) -> &mut Switch {
        &mut self.switch
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary
    }

    /// Returns a queue that exists, since its record is being dealt with.
    fn queue(&mut self, id: QueueId) -> &mut Queue {
        self.queues.get_mut(id).expect("a queue does not end while its record is dealt with")
    }

    /// Returns the partition of such a queue.
    fn partition(&mut self, id: QueueId) -> &mut Partition {
        let assignment = self.queue(id).assignment;
        let partition = self.partitions.get_mut(&assignment);
        partition.expect("a partition is not removed before its queues")
    }

    fn record(&mut self, id: QueueId) -> Record {
        self.queue(id).first().record.clone()
    }

    /// The queue is in flight, and this task has its first records.
    fn in_flight(&mut self, id: QueueId, task: Task<()>, running: usize) {
        let queue = self.queue(id);
        queue.state = State::Running(task);
        queue.running = running;
        self.partition(id).in_flight += 1;
        self.in_flight += 1;
    }

    /// Spawns a task that has the queue's first record, and reports how that ended.
    fn spawn<F>(&mut self, id: QueueId, work: impl FnOnce(Reporter) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let reporter = Reporter { queue: id, reports: self.reports.clone() };
        let task = Task::spawn_on(&self.services.runtime, work(reporter));
        self.in_flight(id, task, 1);
    }

    /// The queue is in flight no more.
    fn not_in_flight(&mut self, id: QueueId) {
        let queue = self.queue(id);
        queue.running = 0;
        match std::mem::replace(&mut queue.state, State::Ended) {
            State::NotReady { route, .. } => self.run_queue.unblock(route),
            _ => self.in_flight -= 1,
        }
        let partition = self.partition(id);
        partition.in_flight -= 1;
        // One for its place, and one more: where others have left, there is room for that as well.
        let next = [partition.crowded.pop_front(), partition.crowded.pop_front()];
        self.list_all(next.into_iter().flatten());
    }

    /// Appends a queue to the run queue.
    fn list(&mut self, id: QueueId) {
        self.queue(id).state = State::Due;
        self.run_queue.push(id);
    }

    /// Appends those of these queues that still exist to the run queue.
    fn list_all(&mut self, ids: impl IntoIterator<Item = QueueId>) {
        for id in ids {
            if self.queues.get_mut(id).is_some() {
                self.list(id);
            }
        }
    }

    /// Removes a queue.
    fn remove(&mut self, id: QueueId) -> Queue {
        self.breaker.not_asked(id);
        let queue = self.queues.remove(id);
        if let (Some(key), Some(partition)) =
            (queue.key, self.partitions.get_mut(&queue.assignment))
        {
            partition.queues.remove(&key);
        }
        queue
    }

    /// Counts records that were dropped unfinished.
    fn left(&mut self, amount: Amount) {
        if self.stopping {
            self.summary.left += amount.records;
        } else {
            self.summary.revoked += amount.records;
        }
    }
}
