//! Dispatch: picks the next queue and starts a run of its first records.

use campanile_core::Record;

use crate::reports::{QueueId, Reporter};
use crate::run::Run;
use crate::scheduler::queue::{QueueState, Queued};
use crate::scheduler::{MAX_RUN_LEN, Scheduler};

impl Scheduler {
    /// Starts due queues up to the in-flight limit.
    pub(crate) fn dispatch(&mut self) {
        while let Some((id, route)) = self.next() {
            self.start(id, route);
        }
    }

    /// Takes the next queue to start, with its route, from the run queue.
    fn next(&mut self) -> Option<(QueueId, usize)> {
        if self.in_flight >= self.config.max_in_flight
            || self.control.is_paused()
            || !self.breaker.allows()
        {
            return None;
        }
        let max_ahead = self.max_ahead();
        let limit = self.partition_limit();
        while let Some(id) = self.run_queue.front() {
            let mut next_limited = None;
            if let Some(queue) = self.queues.get_mut(id)
                && let Some(partition) = self.partitions.get_mut(&queue.assignment)
            {
                let first = queue.first();
                if partition.assignment.is_paused() {
                    queue.state = QueueState::Paused;
                    self.waiting_for_resume.push(id);
                    self.outages.on_inconclusive(id);
                    next_limited = partition.limited.pop_front();
                } else if let Some(delay) = first.remaining_delay(partition.delay()) {
                    queue.state = QueueState::Waiting(self.timers.start(id, delay, None));
                    self.outages.on_inconclusive(id);
                    next_limited = partition.limited.pop_front();
                } else if partition.reaches_max_ahead(first.delivery, max_ahead) {
                    partition.park_ahead(id, first.delivery);
                    queue.state = QueueState::Ahead;
                    self.outages.on_inconclusive(id);
                    next_limited = partition.limited.pop_front();
                } else if partition.in_flight >= limit {
                    queue.state = QueueState::PartitionLimited;
                    partition.limited.push_back(id);
                    self.outages.on_inconclusive(id);
                } else if let Some(witness) = &queue.attempts.witness
                    && self.outages.wait(id, witness.outage)
                {
                    queue.state = QueueState::WaitingForDependency;
                    next_limited = partition.limited.pop_front();
                } else {
                    let route = self.router.route_of(&first.record);
                    if !self.run_queue.is_blocked(route) && self.outages.allow(id, route) {
                        self.run_queue.pop();
                        return Some((id, route));
                    }
                    self.run_queue.park(route);
                    continue;
                }
            }
            self.run_queue.pop();
            // The queue does not use the place it was requeued for, so another one may.
            self.enqueue_all(next_limited);
        }
        None
    }

    /// Starts a run of the queue's first records.
    fn start(&mut self, id: QueueId, route: usize) {
        let is_probe = self.breaker.is_open() || self.outages.concern(route);
        let limit = if is_probe { 1 } else { MAX_RUN_LEN };
        let max_ahead = self.max_ahead();
        let queue = self.queues.get_mut(id).expect("a queue that is due exists");
        let partition = self.partitions.get(&queue.assignment).expect("its partition exists");
        let fits = |queued: &&Queued| {
            queued.remaining_delay(partition.delay()).is_none()
                && !partition.reaches_max_ahead(queued.delivery, max_ahead)
                && self.router.route_of(&queued.record) == route
        };
        let records = queue.records.iter().take(limit).take_while(fits);
        let records: Vec<Record> = records.map(|queued| queued.record.clone()).collect();
        let running = records.len();
        let run = Run {
            records,
            route: self.router.route(route),
            assignment: partition.assignment.clone(),
            metrics: partition.metrics.clone(),
            run_gate: self.control.run_gate(),
            config: self.config.clone(),
            reporter: Reporter { queue: id, reports: self.reports.clone() },
        };
        let task = run.spawn(&self.runtime);
        self.breaker.on_start(id);
        self.outages.on_start(id, route);
        self.mark_in_flight(id, task, running);
    }

    /// Computes how many queues of one partition may be in flight. With several partitions this is
    /// half of the total limit, so that slow handlers of one partition do not hold up the others. A
    /// draining partition starts no records, so it needs no share.
    fn partition_limit(&self) -> usize {
        match self.partitions.values().filter(|partition| !partition.draining).take(2).count() {
            0 | 1 => self.config.max_in_flight,
            _ => (self.config.max_in_flight / 2).max(1),
        }
    }

    /// A record is started only if it is fewer than this many deliveries ahead of its partition's
    /// oldest unfinished record.
    pub(crate) fn max_ahead(&self) -> u64 {
        if self.held_full { 1 } else { self.config.budget.records }
    }

    /// Marks the queue's record as waiting for its service. The record no longer counts toward the
    /// in-flight limit.
    pub(crate) fn on_not_ready(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        let route = self.router.route_of(&queue.first().record);
        match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::Running(task) => {
                queue.state = QueueState::NotReady { task, route };
                self.in_flight -= 1;
                self.run_queue.block(route);
            }
            other => queue.state = other,
        }
    }

    /// Marks the service of the queue's record as ready. The record counts toward the in-flight
    /// limit again, even if this exceeds the limit.
    pub(crate) fn on_ready(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::NotReady { task, route } => {
                queue.state = QueueState::Running(task);
                self.in_flight += 1;
                self.run_queue.unblock(route);
            }
            other => queue.state = other,
        }
    }
}
