//! Queues: records that are processed one after the other.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use campanile_core::Record;
use campanile_idempotency::Settled;
use slab::Slab;
use tokio::time::Instant;

use super::timers::TimerId;
use super::trouble::Trouble;
use crate::driver::assignment::AssignmentId;
use crate::driver::budget::Amount;
use crate::driver::task::Task;
use crate::driver::watermark::Delivery;
use crate::order::OrderKey;
use crate::retry_topics::Rung;

/// Names a queue as long as it has records. A late report of one that has ended finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct QueueId {
    index: usize,
    generation: u64,
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

/// Records of one partition in their order; there is always one.
pub(crate) struct Queue {
    generation: u64,
    pub(super) assignment: AssignmentId,
    /// What the records have in common. `None`: nothing, so no other record joins the queue.
    pub(super) key: Option<OrderKey>,
    pub(super) records: VecDeque<Queued>,
    /// How many of the first records the running task has, of which it has not reported.
    pub(super) running: usize,
    pub(super) state: State,
    /// What is known of the first record's attempts.
    pub(super) head: Head,
}

/// A record in a queue.
pub(super) struct Queued {
    pub(super) delivery: Delivery,
    pub(super) record: Record,
    /// The time before which it is not due, if it comes from a retry topic, and when it was received.
    pub(super) due: Option<(SystemTime, Instant)>,
}

/// What is known of the attempts of a queue's first record.
#[derive(Default)]
pub(super) struct Head {
    /// How often the driver's own backoff was applied.
    pub(super) backoffs: u32,
    /// Whether it was logged that its dead letter is not published.
    pub(super) logged: bool,
    /// The holder that it waited for last. Kept until the next attempt has ended: as long as somebody
    /// keeps it, the key is answered from how the holder ended.
    pub(super) waited_for: Option<Settled>,
    /// What its attempts have met. Boxed, since most meet nothing.
    pub(super) trouble: Option<Box<Trouble>>,
    /// How often the store did not answer, since it was last found to be available.
    pub(super) unanswered: u32,
}

pub(super) enum State {
    /// In the run queue.
    Due,
    /// Too far ahead of its partition's oldest unfinished record.
    Ahead,
    /// Its partition has as many records in flight as it may.
    Crowded,
    /// In flight: a task runs its first records, or gives the first one up.
    Running(Task<()>),
    /// In flight, but not counted, since its record waits until the service of this route is ready.
    NotReady { task: Task<()>, route: usize },
    /// The work on its first record has ended, and what follows is being decided.
    Ended,
    /// Waits for this timer.
    Waiting(TimerId),
}

impl Queue {
    pub(super) fn first(&self) -> &Queued {
        self.records.front().expect("a queue has at least one record")
    }

    /// Removes the first record, which is finished or dropped. Returns whether there is another.
    pub(super) fn pop(&mut self) -> bool {
        self.records.pop_front();
        self.head = Head::default();
        !self.records.is_empty()
    }

    /// Records that the first record was not finished because of this error, and what it waits for.
    pub(super) fn meets(&mut self, error: String, waits_for: &'static str) {
        let before = self.head.trouble.as_ref().map_or(0, |trouble| trouble.times);
        let times = before.saturating_add(1);
        self.head.trouble = Some(Box::new(Trouble { times, error, waits_for }));
    }

    /// Returns whether its first record is in flight.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_) | State::NotReady { .. })
    }

    /// Drops the records that no task has; the first one is kept if a task has it. Returns how much
    /// that was.
    pub(super) fn drop_pending(&mut self) -> Amount {
        let kept = if self.is_running() { self.running.max(1) } else { 0 };
        let mut amount = Amount::default();
        self.records.drain(kept..).for_each(|queued| amount += queued.amount());
        amount
    }

    /// Returns the amount of all its records.
    pub(super) fn amount(&self) -> Amount {
        let mut amount = Amount::default();
        self.records.iter().for_each(|queued| amount += queued.amount());
        amount
    }
}

impl Queued {
    /// Returns how long it has to wait, if it comes from a retry topic whose delay is not over.
    pub(super) fn early(&self, rung: Option<&Rung>) -> Option<Duration> {
        let (due, received) = self.due?;
        rung?.left(due, received)
    }

    pub(super) fn amount(&self) -> Amount {
        Amount::of(&self.record)
    }
}

/// All queues that have records.
#[derive(Default)]
pub(super) struct Queues {
    slab: Slab<Queue>,
    generation: u64,
}

impl Queues {
    /// Adds a queue with this record, which is due.
    pub(super) fn insert(
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
            state: State::Due,
            head: Head::default(),
        });
        QueueId { index, generation }
    }

    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.slab.get_mut(id.index).filter(|queue| queue.generation == id.generation)
    }

    pub(super) fn remove(&mut self, id: QueueId) -> Queue {
        self.slab.remove(id.index)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (QueueId, &mut Queue)> {
        let id = |index, queue: &Queue| QueueId { index, generation: queue.generation };
        self.slab.iter_mut().map(move |(index, queue)| (id(index, queue), queue))
    }
}
