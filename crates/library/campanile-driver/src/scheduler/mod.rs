//! The scheduler: decides which record is started next, and what follows when its attempt has
//! ended.
//!
//! Each partition has queues, and at most one record of a queue is in flight at a time. Depending
//! on the order, there is one queue for the whole partition, for each key, or for each record. Due
//! queues wait in the run queue. No user code runs here.

mod breaker;
mod dispatch;
mod drain;
mod give_up;
mod last_error;
mod outage;
mod outcome;
mod partition;
mod queue;
mod queueing;
mod retry;
mod run_queue;
mod stalls;
mod tick;
mod timers;
mod verdict;

use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::{ConfigError, Record};
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;

use self::breaker::Breaker;
use self::drain::Drain;
pub(crate) use self::drain::DrainId;
use self::outage::{Next, Outages};
use self::partition::Partition;
use self::queue::{Queue, QueueState, Queues};
use self::run_queue::RunQueue;
use self::stalls::Stalls;
use self::timers::Timers;
use crate::config::DriverConfig;
use crate::control::DriverControl;
use crate::error::ConsumerError;
use crate::flood_limit::FloodCounter;
use crate::reports::{QueueId, Report, Reporter, Reports};
use crate::routes::Router;
use crate::run::Task;
use crate::source::{Amount, Assignment, AssignmentId};
use crate::telemetry::ConsumerMetrics;

/// The maximum number of records in a run. A longer run saves nothing more.
const MAX_RUN_LEN: usize = 64;

pub(crate) struct Scheduler {
    partitions: FxHashMap<AssignmentId, Partition>,
    queues: Queues,
    run_queue: RunQueue,
    /// The number of queues in flight, without those that wait for their service to become ready.
    in_flight: usize,
    timers: Timers,
    breaker: Breaker,
    /// Queues that wait because the store did not answer. Some may have been answered since.
    waiting_for_store: Vec<QueueId>,
    outages: Outages,
    /// Queues that wait because their partition or topic is paused. Some may have been resumed since.
    waiting_for_resume: Vec<QueueId>,
    stalls: Stalls,
    drains: Vec<(DrainId, Drain)>,
    /// Partitions that were stopped at a record, and are still read.
    stopped_partitions: Vec<Arc<Assignment>>,
    next_drain: u64,
    stopping: bool,
    /// Whether what records have handed over fills the budget. Then only each partition's oldest
    /// unfinished record is started.
    held_full: bool,
    control: DriverControl,
    flood_counter: FloodCounter,
    config: Arc<DriverConfig>,
    router: Router,
    /// The program's runtime.
    runtime: Handle,
    reports: Arc<Reports>,
    metrics: ConsumerMetrics,
}

impl Scheduler {
    pub(crate) fn new(
        config: Arc<DriverConfig>,
        router: Router,
        runtime: Handle,
        control: DriverControl,
        reports: Arc<Reports>,
    ) -> Self {
        Self {
            partitions: FxHashMap::default(),
            queues: Queues::default(),
            run_queue: RunQueue::default(),
            in_flight: 0,
            timers: Timers::default(),
            breaker: Breaker::default(),
            waiting_for_store: Vec::new(),
            outages: Outages::default(),
            waiting_for_resume: Vec::new(),
            stalls: Stalls::new(config.stall_warning),
            drains: Vec::new(),
            stopped_partitions: Vec::new(),
            next_drain: 0,
            stopping: false,
            held_full: false,
            control,
            flood_counter: FloodCounter::new(config.flood_limit),
            metrics: ConsumerMetrics::new(config.group.clone()),
            router,
            runtime,
            config,
            reports,
        }
    }

    /// Adds an assigned partition.
    ///
    /// # Errors
    /// Fails if the partition must not be consumed.
    pub(crate) fn on_assigned(&mut self, assignment: Arc<Assignment>) -> Result<(), ConfigError> {
        self.config.epilogue.check_topic(&assignment.topic)?;
        // A partition that is assigned during the shutdown is not consumed.
        if !self.stopping {
            let counters = self.status().counters_of(&assignment);
            let metrics = self.metrics.on_assigned(&assignment, &counters);
            let starts = self.config.commits_start_offset;
            let partition = Partition::new(assignment.clone(), counters, metrics, starts);
            self.partitions.insert(assignment.id, partition);
        }
        Ok(())
    }

    /// Handles a report of an attempt.
    ///
    /// # Errors
    /// Fails if the report stops the consumer.
    pub(crate) fn handle_report(&mut self, report: Report) -> Result<(), ConsumerError> {
        match report {
            Report::Processed { queue, item } => self.on_processed(queue, item, false),
            Report::RunEnded { queue, outcome } => return self.on_run_ended(queue, outcome),
            Report::RunStopped { queue } => self.on_run_stopped(queue),
            Report::NotReady { queue } => self.on_not_ready(queue),
            Report::Ready { queue } => self.on_ready(queue),
            Report::KeysExtracted { assignment, keys } => self.on_keys_extracted(assignment, keys),
        }
        Ok(())
    }

    /// Polls the timers, the drains, the breaker, the outages and the control; returns whether any made progress.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.breaker.poll(cx).is_ready();
        if self.breaker.take_recovered() {
            self.requeue_waiting_for_store();
        }
        let resumed = self.control.poll_resumed(cx);
        changed |= resumed.consumer | resumed.target;
        if resumed.consumer {
            self.flood_counter.clear();
        }
        if resumed.target {
            // Queues that are still paused are parked again.
            let waiting = std::mem::take(&mut self.waiting_for_resume);
            self.enqueue_all(waiting);
        }
        while let Poll::Ready((id, timer)) = self.timers.poll_next(cx) {
            changed = true;
            if let Some(queue) = self.queues.get_mut(id)
                && matches!(queue.state, QueueState::Waiting(of) if of == timer)
            {
                self.enqueue(id);
            }
        }
        changed |= self.poll_outages(cx);
        changed |= self.poll_drains(cx);
        self.control.suspend(self.breaker.is_open() || self.held_full);
        changed
    }

    /// Starts the probes that are due; returns whether there are any.
    fn poll_outages(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            let Self { outages, queues, run_queue, .. } = self;
            let is_waiting = |id| queues.is_waiting_for_dependency(id);
            let next = outages.poll_next(cx, is_waiting, |route| run_queue.has_parked(route));
            match next {
                Poll::Ready(Next::Witness(id)) => {
                    self.queue(id).state = QueueState::Due;
                    self.run_queue.push_front(id);
                }
                Poll::Ready(Next::Route(route)) => self.run_queue.unpark(route),
                Poll::Pending => return any,
            }
            any = true;
        }
    }

    /// Sets whether what records have handed over fills the budget. It is held until the oldest
    /// unfinished record of the partition is finished, so only these oldest records are started while
    /// the budget is full.
    pub(crate) fn set_held_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.held_full, full) && !full {
            let max_ahead = self.max_ahead();
            let unblocked = self
                .partitions
                .values_mut()
                .flat_map(|partition| partition.take_unblocked(max_ahead));
            let unblocked: Vec<QueueId> = unblocked.collect();
            self.enqueue_all(unblocked);
        }
    }

    pub(crate) fn held_full(&self) -> bool {
        self.held_full
    }

    pub(crate) fn control(&mut self) -> &mut DriverControl {
        &mut self.control
    }

    pub(crate) fn metrics(&self) -> &ConsumerMetrics {
        &self.metrics
    }

    /// Exports the metrics that are counted elsewhere, after a [`tick`](Self::tick).
    pub(crate) fn export_metrics(&mut self, buffered: Amount) {
        let status = self.status().snapshot();
        let state = self.control.shared().state().borrow();
        let store_unavailable = self.status().is_store_unavailable();
        self.metrics.export(&status, state.paused.as_ref(), store_unavailable, buffered);
    }

    /// Exports the metrics after serving has ended: a consumer that does not exist is not paused,
    /// and waits for no store.
    pub(crate) fn export_last_metrics(&mut self) {
        let status = self.status().snapshot();
        self.metrics.export(&status, None, false, Amount::default());
    }

    fn queue(&mut self, id: QueueId) -> &mut Queue {
        self.queues.get_mut(id).expect("a queue exists while its record is handled")
    }

    fn partition(&mut self, id: QueueId) -> &mut Partition {
        let assignment = self.queue(id).assignment;
        let partition = self.partitions.get_mut(&assignment);
        partition.expect("a partition outlives its queues")
    }

    fn record(&mut self, id: QueueId) -> Record {
        self.queue(id).first().record.clone()
    }

    /// Marks the queue as in flight. The task has the queue's first `running` records.
    fn mark_in_flight(&mut self, id: QueueId, task: Task<()>, running: usize) {
        let queue = self.queue(id);
        queue.state = QueueState::Running(task);
        queue.running = running;
        self.partition(id).in_flight += 1;
        self.in_flight += 1;
    }

    /// Spawns a task that works on the queue's first record and reports the outcome.
    fn spawn<F>(&mut self, id: QueueId, work: impl FnOnce(Reporter) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let reporter = Reporter { queue: id, reports: self.reports.clone() };
        let task = Task::spawn_on(&self.runtime, work(reporter));
        self.mark_in_flight(id, task, 1);
    }

    /// Marks the queue as no longer in flight.
    fn clear_in_flight(&mut self, id: QueueId) {
        let queue = self.queue(id);
        queue.running = 0;
        match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::NotReady { route, .. } => self.run_queue.unblock(route),
            _ => self.in_flight -= 1,
        }
        let partition = self.partition(id);
        partition.in_flight -= 1;
        // Takes the freed place.
        let next = partition.limited.pop_front();
        self.enqueue_all(next);
    }

    /// Marks the queue as due, and appends it to the run queue.
    fn enqueue(&mut self, id: QueueId) {
        self.queue(id).state = QueueState::Due;
        self.run_queue.push(id);
    }

    /// Appends these queues to the run queue, except those that no longer exist.
    fn enqueue_all(&mut self, ids: impl IntoIterator<Item = QueueId>) {
        for id in ids {
            if self.queues.get_mut(id).is_some() {
                self.enqueue(id);
            }
        }
    }

    /// Removes a queue.
    fn remove(&mut self, id: QueueId) -> Queue {
        self.breaker.on_no_store_call(id);
        self.outages.on_inconclusive(id);
        let queue = self.queues.remove(id);
        if let (Some(key), Some(partition)) =
            (queue.key, self.partitions.get_mut(&queue.assignment))
        {
            partition.queues.remove(&key);
        }
        queue
    }
}
