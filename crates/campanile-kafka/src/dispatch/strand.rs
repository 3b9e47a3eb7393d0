//! Records that are processed one after the other: of these, one at a time is at work.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use campanile_core::Record;
use campanile_idempotency::Settled;
use slab::Slab;
use tokio::time::Instant;

use super::trouble::Trouble;
use super::waits::WaitId;
use crate::budget::Amount;
use crate::order::Line;
use crate::retry_topics::Rung;
use crate::slot::SlotId;
use crate::task::Task;
use crate::watermark::Delivery;

/// Names a strand as long as it has records. What comes late for one that has ended meets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StrandId {
    index: usize,
    born: u64,
}

impl StrandId {
    /// A small number, of which it is the only one at a time.
    pub(super) const fn index(self) -> usize {
        self.index
    }
}

#[cfg(test)]
impl StrandId {
    pub(super) const fn numbered(index: usize) -> Self {
        Self { index, born: 0 }
    }
}

/// Records of one partition in their order; there is always one.
pub(super) struct Strand {
    born: u64,
    /// The partition's slot.
    pub(super) slot: SlotId,
    /// What they have in common. `None`: nothing, so that no other record joins it.
    pub(super) line: Option<Line>,
    /// The oldest record.
    pub(super) head: Head,
    queue: VecDeque<Queued>,
}

/// A record that was not begun with.
pub(super) struct Queued {
    pub(super) delivery: Delivery,
    pub(super) record: Record,
    /// The time before which it is not due, if it is a copy that waits, and when it came.
    pub(super) due: Option<(SystemTime, Instant)>,
}

/// The record whose turn it is.
pub(super) struct Head {
    pub(super) delivery: Delivery,
    pub(super) record: Record,
    due: Option<(SystemTime, Instant)>,
    /// How often the driver's own back-off was applied to it.
    pub(super) tries: u32,
    /// Whether it was told that its dead letter is not published.
    pub(super) told: bool,
    /// The holder that it waited for last. Kept until the next attempt has ended: as long as somebody
    /// has it, the key is answered from how the holder ended.
    pub(super) waited: Option<Settled>,
    /// What its attempts have met. Boxed, for most meet nothing.
    pub(super) trouble: Option<Box<Trouble>>,
    /// How often the store did not answer it, since it was last found to be back.
    pub(super) unanswered: u32,
    pub(super) state: State,
}

pub(super) enum State {
    /// Among those whose turn comes.
    Due,
    /// Too far ahead of its partition's oldest record.
    Ahead,
    /// Its partition has as many records at work as it may.
    Crowded,
    /// The service has it, and the dispatcher's task itself polls what that gave.
    Here,
    /// The service has it, or it is being given up.
    Running(Task<()>),
    /// The work on it has ended, and what follows is being decided.
    Ended,
    /// Until then.
    Waiting(WaitId),
}

impl Strand {
    pub(super) fn push(&mut self, queued: Queued) {
        self.queue.push_back(queued);
    }

    /// The record whose turn it was is finished or let go, and the next one is due, if there is one.
    pub(super) fn next(&mut self) -> bool {
        let next = self.queue.pop_front();
        let any = next.is_some();
        if let Some(queued) = next {
            self.head = Head::new(queued);
        }
        any
    }

    /// Lets go of the records behind the first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Record> {
        std::mem::take(&mut self.queue).into_iter().map(|queued| queued.record)
    }
}

impl Head {
    fn new(Queued { delivery, record, due }: Queued) -> Self {
        let (tries, told, waited, trouble) = (0, false, None, None);
        Self {
            delivery,
            record,
            due,
            tries,
            told,
            waited,
            trouble,
            unanswered: 0,
            state: State::Due,
        }
    }

    /// It is not finished, since it has met this, and waits for that.
    pub(super) fn meets(&mut self, error: String, waits_for: &'static str) {
        let times = self.trouble.as_ref().map_or(0, |trouble| trouble.times).saturating_add(1);
        self.trouble = Some(Box::new(Trouble { times, error, waits_for }));
    }

    /// Whether it is at work.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Here | State::Running(_))
    }

    /// How long it has to wait, if it is a copy whose delay is not over.
    pub(super) fn early(&self, rung: Option<&Rung>) -> Option<Duration> {
        let (due, received) = self.due?;
        rung?.left(due, received)
    }

    pub(super) fn amount(&self) -> Amount {
        Amount::of(&self.record)
    }
}

/// All strands that have records.
#[derive(Default)]
pub(super) struct Strands {
    slab: Slab<Strand>,
    born: u64,
}

impl Strands {
    /// A strand with this record, which is due.
    pub(super) fn insert(&mut self, slot: SlotId, line: Option<Line>, first: Queued) -> StrandId {
        let born = self.born;
        self.born += 1;
        let head = Head::new(first);
        let index = self.slab.insert(Strand { born, slot, line, head, queue: VecDeque::new() });
        StrandId { index, born }
    }

    pub(super) fn get_mut(&mut self, id: StrandId) -> Option<&mut Strand> {
        self.slab.get_mut(id.index).filter(|strand| strand.born == id.born)
    }

    pub(super) fn remove(&mut self, id: StrandId) -> Strand {
        self.slab.remove(id.index)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StrandId, &mut Strand)> {
        self.slab.iter_mut().map(|(index, strand)| (StrandId { index, born: strand.born }, strand))
    }
}
