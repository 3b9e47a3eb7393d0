//! Queues of records that are processed one after the other.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use campanile_core::Record;
use campanile_idempotency::SettledFuture;
use slab::Slab;
use tokio::time::Instant;

use crate::order::OrderKey;
use crate::reports::QueueId;
use crate::run::Task;
use crate::scheduler::last_error::LastError;
use crate::scheduler::outage::Witness;
use crate::scheduler::timers::TimerId;
use crate::source::{Amount, AssignmentId, Delay};
use crate::watermark::Delivery;

/// Records of one partition, in order. A queue is never empty.
pub(crate) struct Queue {
    generation: u64,
    pub(crate) assignment: AssignmentId,
    /// The key that the records share. With `None`, no other record can join the queue.
    pub(crate) key: Option<OrderKey>,
    pub(crate) records: VecDeque<Queued>,
    /// The number of records at the front that the running task has and has not reported.
    pub(crate) running: usize,
    pub(crate) state: QueueState,
    /// The state of the attempts at the first record.
    pub(crate) attempts: AttemptState,
}

/// A record in a queue.
pub(crate) struct Queued {
    pub(crate) delivery: Delivery,
    pub(crate) record: Record,
    /// For a record with a delay: the time at which it is due, and when it was received.
    pub(crate) due: Option<(SystemTime, Instant)>,
}

/// The state of the attempts at a queue's first record.
#[derive(Default)]
pub(crate) struct AttemptState {
    /// The number of times the driver's own backoff was applied.
    pub(crate) backoffs: u32,
    /// Whether the record was given up, handed over and kept before.
    pub(crate) kept: bool,
    /// The lock holder that the record waited for last. It is kept until the next attempt has
    /// ended: while a clone exists, the lock keeper answers requests for the key from the holder's
    /// outcome.
    pub(crate) waited_for: Option<SettledFuture>,
    /// Why the attempts did not finish the record. Boxed, since most records finish at the first
    /// attempt.
    pub(crate) last_error: Option<Box<LastError>>,
    /// The number of times the store did not answer, since it was last found to be available.
    pub(crate) store_failures: u32,
    /// Set once an attempt has failed because a dependency was unavailable.
    pub(crate) witness: Option<Box<Witness>>,
}

/// The state of a queue.
pub(crate) enum QueueState {
    /// The queue is in the run queue.
    Due,
    /// The first record is too far ahead of its partition's oldest unfinished record.
    Ahead,
    /// The partition or its topic is paused through a handle.
    Paused,
    /// The partition has reached its in-flight limit.
    PartitionLimited,
    /// In flight: a task runs the first records, or gives up the first one.
    Running(Task<()>),
    /// In flight, but not counted: the record waits until the service of this route is ready.
    NotReady { task: Task<()>, route: usize },
    /// The work on the first record has ended, and the next step is being decided.
    Ended,
    /// The queue waits for this timer.
    Waiting(TimerId),
    /// The queue waits for a dependency that is unavailable.
    WaitingForDependency,
}

impl Queue {
    pub(crate) fn first(&self) -> &Queued {
        self.records.front().expect("a queue has at least one record")
    }

    /// Removes the first record, which was finished or dropped. Returns whether the queue has
    /// another record.
    pub(crate) fn pop(&mut self) -> bool {
        self.records.pop_front();
        self.attempts = AttemptState::default();
        !self.records.is_empty()
    }

    /// Notes the error that kept the first record from finishing, and what the next attempt waits
    /// for.
    pub(crate) fn record_failure(&mut self, error: String, waits_for: &'static str) {
        let previous =
            self.attempts.last_error.as_ref().map_or(0, |last_error| last_error.failures);
        let failures = previous.saturating_add(1);
        self.attempts.last_error = Some(Box::new(LastError { failures, error, waits_for }));
    }

    /// Checks whether the first record is in flight.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, QueueState::Running(_) | QueueState::NotReady { .. })
    }

    /// Checks whether the handler of the first record has succeeded, and the store is to record that.
    pub(crate) fn is_recording(&self) -> bool {
        matches!(self.state, QueueState::Running(_)) && self.first().record.attempt().is_recording()
    }

    /// Checks whether the first record has a delay and is not due yet. Any other wait
    /// follows an error.
    pub(crate) fn is_delayed(&self) -> bool {
        matches!(self.state, QueueState::Waiting(_)) && self.attempts.last_error.is_none()
    }

    /// Drops the records that no task has, and returns their amount. If a task is running, the
    /// first record is kept in any case.
    pub(crate) fn drop_pending(&mut self) -> Amount {
        let kept = if self.is_running() { self.running.max(1) } else { 0 };
        self.records.drain(kept..).map(|queued| queued.amount()).sum()
    }

    pub(crate) fn amount(&self) -> Amount {
        self.records.iter().map(Queued::amount).sum()
    }
}

impl Queued {
    /// Computes the remaining delay of the record, if it has a delay that is not over.
    pub(crate) fn remaining_delay(&self, delay: Option<Delay>) -> Option<Duration> {
        let (due, received) = self.due?;
        delay?.remaining(due, received)
    }

    pub(crate) fn amount(&self) -> Amount {
        Amount::of(&self.record)
    }
}

/// All queues.
#[derive(Default)]
pub(crate) struct Queues {
    slab: Slab<Queue>,
    generation: u64,
}

impl Queues {
    /// Adds a due queue with this record.
    pub(crate) fn insert(
        &mut self,
        assignment: AssignmentId,
        key: Option<OrderKey>,
        first: Queued,
    ) -> QueueId {
        let generation = self.generation;
        self.generation += 1;
        let index = self.slab.insert(Queue {
            generation,
            assignment,
            key,
            records: VecDeque::from([first]),
            running: 0,
            state: QueueState::Due,
            attempts: AttemptState::default(),
        });
        QueueId { index, generation }
    }

    /// Checks whether the first record of a queue waits for a dependency.
    pub(crate) fn is_waiting_for_dependency(&mut self, id: QueueId) -> bool {
        let queue = self.get_mut(id);
        queue.is_some_and(|queue| matches!(queue.state, QueueState::WaitingForDependency))
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.slab.get_mut(id.index).filter(|queue| queue.generation == id.generation)
    }

    pub(crate) fn remove(&mut self, id: QueueId) -> Queue {
        self.slab.remove(id.index)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (QueueId, &mut Queue)> {
        let id = |index, queue: &Queue| QueueId { index, generation: queue.generation };
        self.slab.iter_mut().map(move |(index, queue)| (id(index, queue), queue))
    }
}
