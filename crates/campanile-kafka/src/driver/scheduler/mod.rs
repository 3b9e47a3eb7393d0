//! The scheduler: which record is started next, and what follows when it has ended.
//!
//! Each partition has queues, of which one record at a time is in flight: one queue for the whole
//! partition, for each key, or for each record, as the order says. Queues that are due stand in the run
//! queue. No user code runs here.

mod breaker;
mod drain;
mod give_up;
mod outcome;
mod partition;
mod queue;
mod retry;
mod run_queue;
mod stall_report;
mod stalls;
mod timers;
mod trouble;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{ConfigError, Record};
use tokio::runtime::Handle;

use self::breaker::Breaker;
use self::drain::Drain;
use self::partition::Partition;
pub(crate) use self::queue::QueueId;
use self::queue::{Queue, Queued, Queues, State};
use self::run_queue::RunQueue;
use self::stalls::Stalls;
use self::timers::Timers;
use super::assignment::{Assignment, AssignmentId};
use super::attempt::{Run, spawn_keying};
use super::budget::Amount;
use super::control::Switch;
use super::hash::ByNumber;
use super::reports::{Report, Reporter, Reports};
#[cfg(test)]
use super::simulation::{Bug, is_planted};
use super::source::Received;
use super::task::Task;
use crate::consumer::Policies;
use crate::error::ConsumerError;
use crate::flood::Flood;
use crate::given_up::Fate;
use crate::order::{Keying, OrderKey, PARTITION};
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

/// Names one drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrainId(u64);

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

    /// Queues records, which were counted as used. Returns how much of them is dropped, since their
    /// partition is not consumed any more.
    ///
    /// # Errors
    /// If this consumer must not process one of them.
    pub(super) fn received(&mut self, records: Vec<Received>) -> Result<(), ConsumerError> {
        let mut checked = Ok(());
        let far = self.far();
        for Received { assignment, record, due } in records {
            let Some(partition) = self.partitions.get_mut(&assignment) else {
                // Revoked while it was on its way: the source's to release.
                continue;
            };
            if partition.draining {
                partition.release(Amount::of(&record));
                continue;
            }
            self.summary.received += 1;
            let keying = match partition.rung() {
                Some(_) => {
                    checked = checked.and(self.policies.sources.check(&record));
                    Keying::Key(Some(PARTITION))
                }
                None => self.policies.order.keying(&record),
            };
            // In any case, so that nothing behind it is committed.
            let (queued, before) = partition.deliver(record, due, far);
            match keying {
                Keying::Key(key) => self.enqueue(assignment, key, queued),
                Keying::Extract => {
                    partition.keyless.records.push_back(queued);
                    self.extract_keys(assignment);
                }
            }
            self.list_all(before);
        }
        checked
    }

    /// Appends a record to the queue of its key.
    fn enqueue(&mut self, assignment: AssignmentId, key: Option<OrderKey>, queued: Queued) {
        let Some(partition) = self.partitions.get_mut(&assignment) else {
            return;
        };
        let queue = key.and_then(|key| partition.queues.get(&key));
        match queue.and_then(|&id| self.queues.get_mut(id)) {
            Some(queue) => queue.records.push_back(queued),
            None => {
                let id = self.queues.insert(assignment, key, queued);
                key.map(|key| partition.queues.insert(key, id));
                self.run_queue.push(id);
            }
        }
    }

    /// Starts to find the keys of a partition's records, unless that is under way.
    fn extract_keys(&mut self, assignment: AssignmentId) {
        let Some(partition) = self.partitions.get_mut(&assignment) else {
            return;
        };
        let keyless = &mut partition.keyless;
        if keyless.task.is_none() && !keyless.records.is_empty() {
            let records = keyless.records.iter().take(RUN);
            let records: Vec<Record> = records.map(|queued| queued.record.clone()).collect();
            let count = records.len();
            let order = self.policies.order.clone();
            let reports = self.reports.clone();
            let task = spawn_keying(&self.services.runtime, order, records, assignment, reports);
            keyless.task = Some((task, count));
        }
    }

    fn keyed(&mut self, assignment: AssignmentId, keys: Vec<OrderKey>) {
        // A partition that drains has none any more.
        let Some(partition) = self.partitions.get_mut(&assignment).filter(|p| !p.draining) else {
            return;
        };
        partition.keyless.task = None;
        let records: Vec<Queued> = partition.keyless.records.drain(..keys.len()).collect();
        for (queued, key) in records.into_iter().zip(keys) {
            self.enqueue(assignment, Some(key), queued);
        }
        self.extract_keys(assignment);
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

    /// Drains these partitions, which are revoked: what is in flight has this long to end.
    pub(super) fn revoked(&mut self, partitions: &[Arc<Assignment>], timeout: Duration) -> DrainId {
        self.drain(partitions.iter().map(|assignment| assignment.id).collect(), timeout)
    }

    /// Drains everything: what is in flight has this long to end.
    pub(super) fn stop(&mut self, timeout: Duration) {
        self.stopping = true;
        let partitions = self.partitions.keys().copied().collect();
        self.drain(partitions, timeout);
    }

    /// Ends all drains now.
    pub(super) fn expire_drains(&mut self) {
        self.drains.iter_mut().for_each(|(_, drain)| drain.expire());
    }

    /// Returns whether this drain has ended. During the shutdown another one may have its records.
    pub(super) fn is_drained_of(&self, id: DrainId) -> bool {
        self.drains.iter().all(|(other, _)| *other != id) && (!self.stopping || self.is_drained())
    }

    /// Returns whether no drain is under way.
    pub(super) fn is_drained(&self) -> bool {
        self.drains.is_empty()
    }

    /// Starts what is due, as far as there are places in flight.
    pub(super) fn dispatch(&mut self) {
        while let Some((id, route)) = self.next() {
            self.start(id, route);
        }
    }

    /// Returns the queue that is to be started next, and its route.
    fn next(&mut self) -> Option<(QueueId, usize)> {
        if self.in_flight >= self.policies.max_in_flight
            || self.switch.is_paused()
            || !self.breaker.allows()
        {
            return None;
        }
        let far = self.far();
        let most = self.most_of_a_partition();
        while let Some(id) = self.run_queue.front() {
            let mut instead = None;
            if let Some(queue) = self.queues.get_mut(id)
                && let Some(partition) = self.partitions.get_mut(&queue.assignment)
            {
                let first = queue.first();
                if let Some(left) = first.early(partition.rung()) {
                    queue.state = State::Waiting(self.timers.start(id, left, None));
                    instead = partition.crowded.pop_front();
                } else if partition.is_ahead(first.delivery, far) {
                    partition.hold(id, first.delivery);
                    queue.state = State::Ahead;
                    instead = partition.crowded.pop_front();
                } else if partition.in_flight >= most {
                    queue.state = State::Crowded;
                    partition.crowded.push_back(id);
                } else {
                    let route = self.services.router.route_of(&first.record);
                    if !self.run_queue.is_blocked(route) {
                        self.run_queue.pop();
                        return Some((id, route));
                    }
                    self.run_queue.park(route);
                    continue;
                }
            }
            self.run_queue.pop();
            // It does not take the place that it was listed for.
            self.list_all(instead);
        }
        None
    }

    /// Starts a run with the first records of this queue.
    fn start(&mut self, id: QueueId, route: usize) {
        let most = if self.breaker.is_open() { 1 } else { RUN };
        let far = self.far();
        let queue = self.queues.get_mut(id).expect("a queue that is due has records");
        let partition = self.partitions.get(&queue.assignment).expect("it has queues");
        let fits = |queued: &&Queued| {
            queued.early(partition.rung()).is_none()
                && !partition.is_ahead(queued.delivery, far)
                && self.services.router.route_of(&queued.record) == route
        };
        let records = queue.records.iter().take(most).take_while(fits);
        let records: Vec<Record> = records.map(|queued| queued.record.clone()).collect();
        let running = records.len();
        let run = Run {
            records,
            route: self.services.router.route(route),
            assignment: partition.assignment.clone(),
            halt: self.switch.halt(),
            group: self.services.group.clone(),
            reporter: Reporter { queue: id, reports: self.reports.clone() },
        };
        let task = run.spawn(&self.services.runtime);
        self.breaker.started(id);
        self.in_flight(id, task, running);
    }

    /// Returns how many queues of one partition may be in flight: not all, so that slow handlers of one
    /// of several partitions do not hold up the others.
    fn most_of_a_partition(&self) -> usize {
        match self.partitions.len() {
            0 | 1 => self.policies.max_in_flight,
            _ => (self.policies.max_in_flight / 2).max(1),
        }
    }

    /// Returns how far ahead of its partition's oldest unfinished record one may be started: below that.
    fn far(&self) -> u64 {
        if self.outputs_full { 1 } else { self.policies.far }
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

    /// The queue's record waits until its service is ready, and gives its place to others.
    fn not_ready(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        let route = self.services.router.route_of(&queue.first().record);
        match std::mem::replace(&mut queue.state, State::Ended) {
            State::Running(task) => {
                queue.state = State::NotReady { task, route };
                self.in_flight -= 1;
                self.run_queue.block(route);
            }
            other => queue.state = other,
        }
    }

    /// The queue's record waits no longer, and takes a place, if only beyond the most.
    fn ready(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        match std::mem::replace(&mut queue.state, State::Ended) {
            State::NotReady { task, route } => {
                queue.state = State::Running(task);
                self.in_flight += 1;
                self.run_queue.unblock(route);
            }
            other => queue.state = other,
        }
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

    /// Starts nothing more of these, and drops all that is not in flight.
    fn drain(&mut self, partitions: Vec<AssignmentId>, timeout: Duration) -> DrainId {
        let mut any = false;
        for id in &partitions {
            // One that was assigned during the shutdown is not there.
            if let Some(partition) = self.partitions.get_mut(id) {
                partition.assignment.stop();
                any |= !std::mem::replace(&mut partition.draining, true);
            }
        }
        if any {
            self.drop_pending();
        }
        let id = DrainId(self.next_drain);
        self.next_drain += 1;
        self.drains.push((id, Drain::new(partitions, timeout)));
        id
    }

    /// Drops the records of draining partitions that are not in flight.
    fn drop_pending(&mut self) {
        let mut ended = Vec::new();
        let mut left = Amount::default();
        for (id, queue) in self.queues.iter_mut() {
            let Some(partition) = self.partitions.get(&queue.assignment).filter(|p| p.draining)
            else {
                continue;
            };
            let amount = queue.drop_pending();
            partition.release(amount);
            left += amount;
            if queue.records.is_empty() {
                ended.push(id);
            }
        }
        for partition in self.partitions.values_mut().filter(|partition| partition.draining) {
            let keyless = std::mem::take(&mut partition.keyless);
            let mut amount = Amount::default();
            keyless.records.iter().for_each(|queued| amount += queued.amount());
            partition.release(amount);
            left += amount;
        }
        ended.into_iter().for_each(|id| drop(self.remove(id)));
        self.left(left);
    }

    fn poll_drains(&mut self, cx: &mut Context<'_>) -> bool {
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
                let tasks = self.take_back(&drain.partitions);
                drain.partitions.clear();
                drain.cancel(tasks);
            }
            drain.poll_end(cx).is_pending()
        });
        self.drains = drains;
        self.drains.len() < before
    }

    /// Removes these partitions. Returns the tasks that are in flight, each with its records.
    fn take_back(&mut self, partitions: &[AssignmentId]) -> Vec<(Task<()>, Vec<Record>)> {
        let of_these = |queue: &Queue| partitions.contains(&queue.assignment);
        let ids = self.queues.iter_mut().filter(|(_, queue)| of_these(queue)).map(|(id, _)| id);
        let ids: Vec<QueueId> = ids.collect();
        let mut tasks = Vec::new();
        for id in ids {
            let queue = self.remove(id);
            if let Some(partition) = self.partitions.get(&queue.assignment) {
                partition.release(queue.amount());
            }
            self.left(queue.amount());
            let running = queue.records.iter().take(queue.running);
            let records = running.map(|queued| queued.record.clone()).collect();
            match queue.state {
                State::Running(task) => {
                    self.in_flight -= 1;
                    tasks.push((task, records));
                }
                State::NotReady { task, route } => {
                    self.run_queue.unblock(route);
                    tasks.push((task, records));
                }
                _ => {}
            }
        }
        partitions.iter().for_each(|id| drop(self.partitions.remove(id)));
        tasks
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
