//! Which queue is next, and what it is started with.

use campanile_core::Record;

use super::queue::{QueueId, Queued, State};
use super::{RUN, Scheduler};
use crate::driver::reports::Reporter;
use crate::driver::run::Run;

impl Scheduler {
    /// Starts what is due, as far as there are places in flight.
    pub(in crate::driver) fn dispatch(&mut self) {
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
    pub(super) fn far(&self) -> u64 {
        if self.outputs_full { 1 } else { self.policies.far }
    }

    /// The queue's record waits until its service is ready, and gives its place to others.
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

    /// The queue's record waits no longer, and takes a place, if only beyond the most.
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
