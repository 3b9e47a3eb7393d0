//! A partition's records in their order, of which one at a time is at work.

use std::collections::VecDeque;
use std::sync::Arc;

use campanile_core::Record;

use super::waits::WaitId;
use crate::budget::Amount;
use crate::slot::Slot;
use crate::task::Task;
use crate::watermark::{Delivery, Watermark};

/// The records of one slot.
pub(super) struct Lane {
    slot: Arc<Slot>,
    queue: VecDeque<(Delivery, Record)>,
    /// The record at work: the oldest that is not finished.
    head: Option<Head>,
    watermark: Watermark,
    /// Nothing more is begun.
    draining: bool,
    /// Whether it stands in the list of those whose turn comes.
    pub(super) listed: bool,
}

/// The record at work.
pub(super) struct Head {
    pub(super) delivery: Delivery,
    pub(super) record: Record,
    /// How often it ended in a way after which the driver's own back-off applies.
    pub(super) tries: u32,
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

    pub(super) fn push(&mut self, record: Record) {
        let delivery = self.watermark.deliver(record.offset());
        self.queue.push_back((delivery, record));
    }

    /// Whether it has a record that could be dispatched now.
    pub(super) fn is_due(&self) -> bool {
        !self.draining
            && match &self.head {
                Some(head) => matches!(head.state, HeadState::Due),
                None => !self.queue.is_empty(),
            }
    }

    /// Whether a task has a record of it.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            &self.head,
            Some(Head {
                state: HeadState::Running(_),
                ..
            })
        )
    }

    pub(super) fn head(&mut self) -> Option<&mut Head> {
        self.head.as_mut()
    }

    /// The record that is due.
    pub(super) fn due(&mut self) -> Option<&mut Head> {
        if self.head.is_none() {
            let (delivery, record) = self.queue.pop_front()?;
            self.head = Some(Head {
                delivery,
                record,
                tries: 0,
                state: HeadState::Due,
            });
        }
        self.head.as_mut()
    }

    /// The record at work is finished: the mark may move.
    pub(super) fn finish(&mut self) -> Amount {
        let Some(head) = self.head.take() else {
            return Amount::default();
        };
        if let Some(mark) = self.watermark.finish(head.delivery) {
            self.slot.set_mark(mark);
        }
        self.let_go(&head.record)
    }

    /// Lets the record at work go unfinished, with its task if it has one.
    pub(super) fn leave(&mut self) -> (Amount, Option<(Task<()>, Record)>) {
        let Some(head) = self.head.take() else {
            return (Amount::default(), None);
        };
        let amount = self.let_go(&head.record);
        match head.state {
            HeadState::Running(task) => (amount, Some((task, head.record))),
            HeadState::Due | HeadState::Waiting(_) => (amount, None),
        }
    }

    /// Begins nothing more, and lets go of all that is not at work.
    pub(super) fn drain(&mut self) -> Amount {
        self.draining = true;
        let mut left = Amount::default();
        for (_, record) in std::mem::take(&mut self.queue) {
            let one = self.let_go(&record);
            left.add(one.bytes);
        }
        if !self.is_busy() {
            let (amount, _) = self.leave();
            left.records += amount.records;
            left.bytes += amount.bytes;
        }
        left
    }

    /// Takes a record out of the slot's stock.
    fn let_go(&self, record: &Record) -> Amount {
        let amount = Amount {
            records: 1,
            bytes: record.size() as u64,
        };
        self.slot.stock.finish(amount);
        amount
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }
}
