//! A partition that is assigned: what was delivered of it, and up to where that is finished.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::{Coordinates, Output, Record};
use tokio::time::Instant;

use super::pace::Pace;
use super::strand::{Queued, StrandId};
use crate::budget::Amount;
use crate::hash::ByNumber;
use crate::order::Line;
use crate::retry_topics::Rung;
use crate::slot::Slot;
use crate::transaction::Pending;
use crate::watermark::{Delivery, Watermark};

/// One slot.
pub(super) struct Lane {
    slot: Arc<Slot>,
    watermark: Watermark,
    /// Its strands, but for those that no record can join.
    pub(super) strands: ByNumber<Line, StrandId>,
    /// How its handlers do: those of another partition may be slow.
    pub(super) pace: Pace,
    /// How many of its records are at work.
    pub(super) busy: usize,
    /// Strands that wait until fewer of its records are at work.
    pub(super) crowded: VecDeque<StrandId>,
    /// Strands whose record is too far ahead, by that.
    ahead: BTreeMap<Delivery, StrandId>,
    /// What records that are finished give out, before the mark has passed them.
    pending: BTreeMap<Delivery, Pending>,
    /// Whether where it begins is committed before anything is finished.
    keeps_start: bool,
    /// Nothing more is begun.
    pub(super) draining: bool,
    /// Whether it is known for how long the entries of its records are kept.
    pub(super) entries_known: bool,
}

impl Lane {
    pub(super) fn new(slot: Arc<Slot>, keeps_start: bool) -> Self {
        Self {
            slot,
            watermark: Watermark::default(),
            strands: ByNumber::default(),
            pace: Pace::new(),
            busy: 0,
            crowded: VecDeque::new(),
            ahead: BTreeMap::new(),
            pending: BTreeMap::new(),
            keeps_start,
            draining: false,
            entries_known: false,
        }
    }

    pub(super) fn deliver(&mut self, record: Record, due: Option<SystemTime>) -> Queued {
        let offset = record.offset();
        let delivery = self.watermark.deliver(offset);
        if self.watermark.mark().is_none() && delivery == self.watermark.oldest() {
            // The first one, or the position was reset: a mark from before would skip what comes again.
            match self.keeps_start {
                true => self.slot.advance(offset, std::iter::empty()),
                false => self.slot.clear_mark(),
            }
            // What was finished ahead comes again.
            self.pending = self.pending.split_off(&delivery);
        }
        Queued { delivery, record, due: due.map(|due| (due, Instant::now())) }
    }

    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The retry topic that it is of.
    pub(super) fn rung(&self) -> Option<&Rung> {
        self.slot.rung.as_ref()
    }

    /// Whether this delivery comes so many after the oldest one that is not finished, or more. Then
    /// its strand is kept until the mark has moved.
    pub(super) fn hold(&mut self, id: StrandId, delivery: Delivery, far: u64) -> bool {
        let hold = self.watermark.ahead(delivery) >= far;
        if hold {
            self.ahead.insert(delivery, id);
        }
        hold
    }

    /// A record is finished, and gives out these: the mark may move. Gives the strands that were too far
    /// ahead and are not any more.
    pub(super) fn finish(
        &mut self,
        delivery: Delivery,
        pending: Option<Pending>,
        far: u64,
    ) -> Vec<StrandId> {
        // One from before the position was reset comes again.
        if let Some(pending) = pending.filter(|_| delivery >= self.watermark.oldest()) {
            self.pending.insert(delivery, pending);
        }
        let Some(mark) = self.watermark.finish(delivery) else {
            return Vec::new();
        };
        let ahead = self.pending.split_off(&self.watermark.oldest());
        let passed = std::mem::replace(&mut self.pending, ahead);
        self.slot.advance(mark, passed.into_values());
        self.take_near(far)
    }

    /// The strands that were too far ahead and are not any more.
    pub(super) fn take_near(&mut self, far: u64) -> Vec<StrandId> {
        let mut near = Vec::new();
        while let Some(first) = self.ahead.first_entry()
            && self.watermark.ahead(*first.key()) < far
        {
            near.push(first.remove());
        }
        near
    }

    /// What a record of it gives out, counted from now on.
    pub(super) fn pending(&self, at: Coordinates, outputs: Vec<Output>) -> Pending {
        Pending::new(at, outputs, [self.slot.stock.clone(), self.slot.total.clone()])
    }

    /// Records of it are finished or let go.
    pub(super) fn let_go(&self, amount: Amount) {
        self.slot.stock.finish(amount);
    }
}
