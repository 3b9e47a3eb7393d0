//! A partition's records in their order, of which one at a time is at work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::Record;
use campanile_idempotency::Settled;
use tokio::time::Instant;

use super::waits::WaitId;
use crate::budget::Amount;
use crate::retry_topics::Rung;
use crate::slot::Slot;
use crate::task::Task;
use crate::watermark::{Delivery, Watermark};

/// The records of one slot.
pub(super) struct Lane {
    slot: Arc<Slot>,
    queue: VecDeque<Queued>,
    /// The oldest record that is not finished, once it was begun with.
    head: Option<Head>,
    watermark: Watermark,
    /// Nothing more is begun.
    draining: bool,
    /// Whether it stands in the list of those whose turn comes.
    pub(super) listed: bool,
}

/// A record that was not begun with.
struct Queued {
    delivery: Delivery,
    record: Record,
    /// The time before which it is not due, if it is a copy that waits, and when it came.
    due: Option<(SystemTime, Instant)>,
}

/// The record at work.
pub(super) struct Head {
    delivery: Delivery,
    pub(super) record: Record,
    /// How often the driver's own back-off was applied to it.
    pub(super) tries: u32,
    /// Whether it was told that its dead letter is not published.
    pub(super) told: bool,
    /// The holder that it waited for last. Kept until the next attempt has ended: as long as somebody
    /// has it, the key is answered from how the holder ended.
    pub(super) waited: Option<Settled>,
    pub(super) state: HeadState,
}

pub(super) enum HeadState {
    /// To be dispatched, when its lane's turn comes.
    Due,
    /// The service has it, or it is being given up.
    Running(Task<()>),
    /// Until then.
    Waiting(WaitId),
}

impl Lane {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self {
            slot,
            queue: VecDeque::new(),
            head: None,
            watermark: Watermark::default(),
            draining: false,
            listed: false,
        }
    }

    pub(super) fn push(&mut self, record: Record, due: Option<SystemTime>) {
        let delivery = self.watermark.deliver(record.offset());
        if self.watermark.mark().is_none() {
            // The position was reset: a mark from before would skip what comes again.
            self.slot.clear_mark();
        }
        let due = due.map(|due| (due, Instant::now()));
        self.queue.push_back(Queued { delivery, record, due });
    }

    /// Whether it has a record that may be dispatched now.
    pub(super) fn is_due(&self) -> bool {
        !self.draining
            && match &self.head {
                Some(head) => matches!(head.state, HeadState::Due),
                None => !self.queue.is_empty(),
            }
    }

    /// How long the next record has to wait, if it is a copy whose delay is not over. One that was
    /// begun with has waited.
    pub(super) fn early(&self) -> Option<Duration> {
        let (rung, queued) = (self.slot.rung.as_ref()?, self.queue.front()?);
        let (due, received) = queued.due?;
        self.head.is_none().then(|| rung.left(due, received)).flatten()
    }

    /// The retry topic that it is of.
    pub(super) fn rung(&self) -> Option<&Rung> {
        self.slot.rung.as_ref()
    }

    /// Whether a task has a record of it.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.head.as_ref().map(|head| &head.state);
        matches!(state, Some(HeadState::Running(_)))
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// The record that is due, of a lane that has one.
    pub(super) fn due(&mut self) -> &mut Head {
        if self.head.is_none() {
            self.head = self.queue.pop_front().map(|Queued { delivery, record, .. }| Head {
                delivery,
                record,
                tries: 0,
                told: false,
                waited: None,
                state: HeadState::Due,
            });
        }
        self.head()
    }

    /// The record at work, of a lane that has one.
    pub(super) fn head(&mut self) -> &mut Head {
        let head = self.head.as_mut();
        head.expect("asked only where a record is at work, or due")
    }

    /// A wait is over. Whether it was the one of the record at work, which then is due.
    pub(super) fn wait_is_over(&mut self, id: WaitId) -> bool {
        let Some(head) = &mut self.head else {
            return false;
        };
        let over = matches!(head.state, HeadState::Waiting(of) if of == id);
        if over {
            head.state = HeadState::Due;
        }
        over
    }

    /// The record at work is finished: the mark may move.
    pub(super) fn finish(&mut self) -> Amount {
        let delivery = self.head().delivery;
        if let Some(mark) = self.watermark.finish(delivery) {
            self.slot.set_mark(mark);
        }
        self.leave().0
    }

    /// Lets the record at work go, if there is one, with its task if that runs.
    pub(super) fn leave(&mut self) -> (Amount, Option<(Task<()>, Record)>) {
        let Some(Head { record, state, .. }) = self.head.take() else {
            return (Amount::default(), None);
        };
        let amount = self.let_go(&record);
        match state {
            HeadState::Running(task) => (amount, Some((task, record))),
            HeadState::Due | HeadState::Waiting(_) => (amount, None),
        }
    }

    /// Begins nothing more, and lets go of all that no task has.
    pub(super) fn drain(&mut self) -> Amount {
        self.draining = true;
        let mut left = Amount::default();
        for Queued { record, .. } in std::mem::take(&mut self.queue) {
            left += self.let_go(&record);
        }
        if !self.is_busy() {
            left += self.leave().0;
        }
        left
    }

    /// Takes a record out of the slot's stock.
    fn let_go(&self, record: &Record) -> Amount {
        let amount = Amount::of(record);
        self.slot.stock.finish(amount);
        amount
    }
}
