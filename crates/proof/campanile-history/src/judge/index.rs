//! The events of a history, by record, key, partition and run.

use std::borrow::Cow;

use super::faults::Faults;
use super::times;
use crate::{History, How, Outcome, Partition};

/// All of a history that the rules need. Events, records, keys, partitions and runs are known by
/// their index.
pub(super) struct Index<'a> {
    pub(super) history: &'a History,
    pub(super) faults: Faults,
    pub(super) records: Vec<Record>,
    pub(super) keys: Vec<Key<'a>>,
    pub(super) partitions: Vec<PartitionEvents<'a>>,
    pub(super) runs: Vec<Run>,
    pub(super) answers: Vec<Answered>,
    /// The record and the event of each output.
    pub(super) outputs: Vec<(usize, usize)>,
}

/// A record that was sent, copied or processed.
pub(super) struct Record {
    pub(super) partition: usize,
    pub(super) offset: i64,
    pub(super) key: Option<usize>,
    /// The key by its own events, also if it is a copy.
    pub(super) own_key: Option<usize>,
    /// The key is the text of coordinates, because no event says another.
    pub(super) has_derived_key: bool,
    /// The record of which it is a copy.
    pub(super) original: Option<usize>,
    pub(super) runs: Vec<usize>,
    /// The event that made the record known to the history: it was sent, or is a copy.
    pub(super) origin: Option<usize>,
    /// When the record was sent.
    pub(super) sent: Option<u64>,
    /// The records with the same queue in a partition are processed in order.
    pub(super) queue: Option<Queue>,
    /// When the record was finished, and the event that says so.
    pub(super) finished: Option<(u64, usize)>,
}

/// The records of a partition that are processed one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Queue {
    Partition,
    /// Records with this `order`, or with none.
    Key(Option<usize>),
}

/// An idempotency key, or a record without one.
pub(super) struct Key<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) runs: Vec<usize>,
    pub(super) entries: Vec<usize>,
    /// The tokens under which an entry was COMPLETED, sorted, and the events.
    pub(super) completed: Vec<(Option<u64>, usize)>,
    /// When a record was answered as a duplicate, sorted, and the events.
    pub(super) duplicates: Vec<(u64, usize)>,
    /// When an answer or an entry said that the key is FAILED, sorted, and the events.
    pub(super) given_up: Vec<(u64, usize)>,
    /// When an operator reopened or unlocked the key, sorted.
    pub(super) reopened: Vec<u64>,
    pub(super) unlocked: Vec<u64>,
    /// One of its runs has no lock.
    pub(super) has_unguarded: bool,
    pub(super) first_sent: Option<u64>,
    /// When the first run with a token was processed, and the event.
    pub(super) first_processed: Option<(u64, usize)>,
    /// When the first handler had ended with `ok`.
    pub(super) first_success: Option<u64>,
}

pub(super) struct PartitionEvents<'a> {
    pub(super) name: &'a Partition,
    pub(super) records: Vec<usize>,
    /// In the order in which the broker recorded them.
    pub(super) commits: Vec<usize>,
    /// When the group was moved.
    pub(super) resets: Vec<u64>,
    /// Below which offset records were deleted, when, and the event.
    pub(super) deletions: Vec<(i64, u64, usize)>,
}

/// A handler that has started.
pub(super) struct Run {
    pub(super) process: usize,
    pub(super) record: usize,
    pub(super) key: usize,
    pub(super) token: Option<u64>,
    pub(super) attempt: Option<u32>,
    pub(super) began: u64,
    pub(super) begin: usize,
    pub(super) effect: Option<usize>,
    pub(super) end: Option<RunEnd>,
    /// How often its record had been answered in its process.
    pub(super) delivery: usize,
    /// The events of its effect in the store.
    pub(super) visible: Vec<usize>,
    /// Effects are in transactions, and the store has none of this run: it was rolled back, or lost.
    pub(super) is_invisible: bool,
    /// The store lost writes of some time after the run began.
    pub(super) may_be_lost: bool,
    /// How the run was answered after its success, when, and the event.
    pub(super) answer: Option<(Outcome, u64, usize)>,
}

#[derive(Clone, Copy)]
pub(super) struct RunEnd {
    pub(super) at: u64,
    pub(super) how: How,
    pub(super) has_lost_lock: bool,
    pub(super) event: usize,
}

/// An answer, and the run that it answers for.
pub(super) struct Answered {
    pub(super) record: usize,
    pub(super) event: usize,
    pub(super) at: u64,
    pub(super) outcome: Outcome,
    pub(super) run: Option<usize>,
}

impl Index<'_> {
    /// Returns the text of a record's coordinates.
    pub(super) fn record_name(&self, record: usize) -> String {
        let Record { partition, offset, .. } = self.records[record];
        format!("{}@{offset}", self.partitions[partition].name)
    }

    /// Checks whether a record was deleted at any time.
    pub(super) fn is_deleted(&self, record: usize) -> bool {
        let Record { partition, offset, .. } = self.records[record];
        // They are sorted by their offsets.
        self.partitions[partition].deletions.last().is_some_and(|deletion| deletion.0 > offset)
    }

    /// Checks whether what a consumer knows of the key at this time may be stale: it may have learned
    /// that before the entry was reopened, lost or removed.
    pub(super) fn may_be_stale(&self, key: &Key<'_>, by: u64) -> bool {
        self.may_be_lost(key, 0, by)
    }

    /// Checks whether the entry of the key may be reopened, lost or removed in this interval.
    pub(super) fn may_be_lost(&self, key: &Key<'_>, from: u64, until: u64) -> bool {
        self.faults.lost_writes(from, until)
            || self.faults.evicted(from, until)
            || times::any_within(&key.reopened, from, until)
    }

    /// Computes how many attempts of a key may have been counted without a run in this interval. A
    /// lock whose record waits for its turn for too long is lost, and counted when it is granted
    /// again; a record waits from `waiting`.
    pub(super) fn uncounted(&self, key: &Key<'_>, from: u64, waiting: u64, until: u64) -> u128 {
        let unlocked = times::count_within(&key.unlocked, from, until) as u128;
        let max_hold = self.history.settings.max_hold;
        let waited = max_hold.map_or(0, |max_hold| (until - waiting) / max_hold.max(1));
        self.faults.uncounted(from, until) + unlocked + u128::from(waited)
    }

    /// Computes how many attempts of a key may have been counted without a run before its first run,
    /// by this time.
    pub(super) fn uncounted_since_sent(&self, key: &Key<'_>, until: u64) -> u128 {
        let sent = key.first_sent.unwrap_or_default().min(until);
        self.uncounted(key, sent, sent, until)
    }

    /// Finds when a run was over: its end, or the end of its process.
    pub(super) fn over(&self, run: &Run) -> Option<u64> {
        let killed = || self.killed(run).map(|at| at.max(run.began));
        run.end.map(|end| end.at).or_else(killed)
    }

    /// Finds when the process of a run was killed.
    pub(super) fn killed(&self, run: &Run) -> Option<u64> {
        self.faults.killed(run.process, run.began)
    }
}

impl Run {
    /// Lists the events of the run.
    pub(super) fn events(&self) -> impl Iterator<Item = usize> {
        let end = self.end.map(|end| end.event);
        let answer = self.answer.map(|(.., event)| event);
        let events = [Some(self.begin), self.effect, end, answer].into_iter().flatten();
        events.chain(self.visible.iter().copied())
    }

    /// Finds when the stack answered that this run was processed, and the event.
    pub(super) fn processed(&self) -> Option<(u64, usize)> {
        let (_, at, event) = self.answer.filter(|(outcome, ..)| *outcome == Outcome::Processed)?;
        Some((at, event))
    }

    /// Finds the end of a handler that returned `Ok` and was not rolled back for certain.
    pub(super) fn success(&self) -> Option<u64> {
        let end = self.end.filter(|end| end.how == How::Ok)?;
        (!self.is_invisible || self.may_be_lost).then_some(end.at)
    }
}
