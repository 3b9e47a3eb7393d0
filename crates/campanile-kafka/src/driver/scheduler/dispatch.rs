//! Dispatch: picks the next queue and starts a run of its first records.

use campanile_core::Record;

use super::queue::{QueueId, Queued, State};
use super::{RUN, Scheduler};
use crate::driver::reports::Reporter;
use crate::driver::run::Run;

impl Scheduler {
    /// Starts due queues up to the in-flight limit.
    pub(in crate::driver) fn dispatch(&mut self) {
        while let Some((id, route)) = self.next() {
            self.start(id, route);
        }
    }

    /// Removes the next queue to start from the run queue, and returns it with its route.
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
            // The queue does not use the place it was requeued for, so another one may.
            self.list_all(instead);
        }
        None
    }

    /// Starts a run of the queue's first records.
    fn start(&mut self, id: QueueId, route: usize) {
        let most = if self.breaker.is_open() { 1 } else { RUN };
        let far = self.far();
        let queue = self.queues.get_mut(id).expect("a queue that is due exists");
        let partition = self.partitions.get(&queue.assignment).expect("its partition exists");
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
            spans: self.services.spans.clone(),
            reporter: Reporter { queue: id, reports: self.reports.clone() },
        };
        let task = run.spawn(&self.services.runtime);
        self.breaker.started(id);
        self.in_flight(id, task, running);
    }

    /// Returns how many queues of one partition may be in flight. With several partitions this is
    /// half of the limit, so that slow handlers of one partition do not hold up the others.
    fn most_of_a_partition(&self) -> usize {
        match self.partitions.len() {
            0 | 1 => self.policies.max_in_flight,
            _ => (self.policies.max_in_flight / 2).max(1),
        }
    }

    /// Returns the bound for starting records ahead: a record is started only if it is fewer than
    /// this many deliveries ahead of its partition's oldest unfinished record.
    pub(super) fn far(&self) -> u64 {
        if self.outputs_full { 1 } else { self.policies.far }
    }

    /// Marks the queue's record as waiting for its service. The record no longer counts toward the
    /// in-flight limit.
    pub(super) fn not_ready(&mut self, id: QueueId) {
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

    /// Marks the service of the queue's record as ready. The record counts toward the in-flight
    /// limit again, even if this exceeds the limit.
    pub(super) fn ready(&mut self, id: QueueId) {
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
}
