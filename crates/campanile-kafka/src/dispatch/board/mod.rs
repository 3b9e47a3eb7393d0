//! All lanes, and whose turn it is: everything of the dispatcher that does not know the service.

mod ended;
mod given_up;
mod retry;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{ConfigError, Record};
use tokio::sync::mpsc::UnboundedSender;

use super::attempt::{Report, Reported};
use super::drain::Drain;
use super::lane::{HeadState, Lane};
use super::store::StoreHealth;
use super::turns::Turns;
use super::waits::Waits;
use crate::budget::Amount;
use crate::consumer::Policies;
use crate::error::ConsumerError;
use crate::flood::Flood;
use crate::given_up::Fate;
use crate::handle::{Gate, Shutdown};
use crate::intake::{Done, Received};
use crate::slot::{Slot, SlotId};
use crate::summary::Summary;
use crate::task::Task;

pub(super) struct Board {
    lanes: HashMap<SlotId, Lane>,
    /// Whose turn comes, in this order. Who has nothing due by then is passed over.
    turns: Turns,
    /// How many lanes have a record at work.
    busy: usize,
    waits: Waits,
    store: StoreHealth,
    drains: Vec<Drain>,
    stopping: bool,
    gate: Gate,
    flood: Flood,
    policies: Policies,
    reports: UnboundedSender<Reported>,
    /// What has ended since the intake was last told.
    finished: Amount,
    summary: Summary,
}

impl Board {
    pub(super) fn new(policies: Policies, gate: Gate, reports: UnboundedSender<Reported>) -> Self {
        Self {
            lanes: HashMap::new(),
            turns: Turns::default(),
            busy: 0,
            waits: Waits::default(),
            store: StoreHealth::default(),
            drains: Vec::new(),
            stopping: false,
            gate,
            flood: Flood::new(policies.flood_guard),
            policies,
            reports,
            finished: Amount::default(),
            summary: Summary::default(),
        }
    }

    /// An error is of a partition that may not be consumed.
    pub(super) fn assigned(&mut self, slot: Arc<Slot>) -> Result<(), ConfigError> {
        if let Fate::DeadLetter(letters) = &self.policies.given_up {
            self.policies.targets.add(letters, &slot.topic)?;
        }
        // One that comes while we stop is not begun with.
        if !self.stopping {
            self.lanes.insert(slot.id, Lane::new(slot));
        }
        Ok(())
    }

    /// An error is of a record that this consumer must not process.
    pub(super) fn received(&mut self, records: Vec<Received>) -> Result<(), ConsumerError> {
        let mut checked = Ok(());
        for Received { slot, record, due } in records {
            match self.lanes.get_mut(&slot) {
                Some(lane) if !lane.is_draining() => {
                    self.summary.received += 1;
                    if lane.rung().is_some() {
                        checked = checked.and(self.policies.sources.check(&record));
                    }
                    // In any case, so that nothing behind it is committed.
                    lane.push(record, due);
                    self.list(slot);
                }
                // Revoked while it was on its way.
                _ => self.finished += Amount::of(&record),
            }
        }
        checked
    }

    /// These partitions are taken away: what is at work has this long to end.
    pub(super) fn revoked(&mut self, slots: Vec<SlotId>, timeout: Duration, done: Done) {
        self.drain(slots, timeout, Some(done));
    }

    /// Begins nothing more. What is at work has this long to end.
    pub(super) fn stop(&mut self, timeout: Duration) {
        self.stopping = true;
        let slots = self.lanes.keys().copied().collect();
        self.drain(slots, timeout, None);
    }

    /// The time of all drains is up.
    pub(super) fn hurry(&mut self) {
        self.drains.iter_mut().for_each(Drain::hurry);
    }

    /// Whether all that was to be drained is.
    pub(super) fn is_drained(&self) -> bool {
        self.drains.is_empty()
    }

    /// The lane whose record is to be dispatched next, if one may be dispatched.
    pub(super) fn next(&mut self) -> Option<SlotId> {
        let full = self.busy >= self.policies.max_in_flight;
        if full || !self.gate.is_open() || !self.store.allows() {
            return None;
        }
        while let Some(slot) = self.turns.front() {
            match self.lanes.get_mut(&slot) {
                Some(lane) if lane.is_due() => match lane.early() {
                    None => return Some(slot),
                    Some(left) => self.wait_for_its_time(slot, left),
                },
                Some(lane) => lane.listed = false,
                None => {}
            }
            self.turns.pop();
        }
        None
    }

    /// The record of this lane, whose turn it is.
    pub(super) fn due(&mut self, slot: SlotId) -> &Record {
        &self.lane(slot).due().record
    }

    pub(super) fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Takes this turn: its record, and how to tell of its end.
    pub(super) fn begin(&mut self, slot: SlotId) -> (Record, Report) {
        self.turns.pop();
        let lane = self.lane(slot);
        lane.listed = false;
        let record = lane.due().record.clone();
        (record, self.report(slot))
    }

    /// The service has the record of this lane.
    pub(super) fn begun(&mut self, slot: SlotId, task: Task<()>) {
        self.at_work(slot, task);
        self.store.dispatched(slot);
    }

    /// Waits, drains, the store's next probe and the gate. Whether anything has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.store.poll(cx).is_ready();
        if self.gate.poll(cx) {
            self.flood.clear();
            changed = true;
        }
        while let Poll::Ready((slot, id)) = self.waits.poll_next(cx) {
            changed = true;
            if let Some(lane) = self.lanes.get_mut(&slot)
                && lane.wait_is_over(id)
            {
                self.list(slot);
            }
        }
        changed | self.poll_drains(cx)
    }

    /// How it is to end, if a handle has asked for that since.
    pub(super) fn take_shutdown(&mut self) -> Option<Shutdown> {
        self.gate.take_shutdown()
    }

    /// What the intake should know.
    pub(super) fn take_finished(&mut self) -> Amount {
        std::mem::take(&mut self.finished)
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary
    }

    /// A lane that must be there, since its record is being dealt with.
    fn lane(&mut self, slot: SlotId) -> &mut Lane {
        let lane = self.lanes.get_mut(&slot);
        lane.expect("a lane is not removed while its record is dealt with")
    }

    fn at_work(&mut self, slot: SlotId, task: Task<()>) {
        self.lane(slot).head().state = HeadState::Running(task);
        self.busy += 1;
    }

    /// Puts a lane at the end of the turns.
    fn list(&mut self, slot: SlotId) {
        let lane = self.lane(slot);
        if !lane.listed {
            lane.listed = true;
            self.turns.push(slot);
        }
    }

    fn report(&self, slot: SlotId) -> Report {
        Report { slot, reports: self.reports.clone() }
    }

    fn drain(&mut self, slots: Vec<SlotId>, timeout: Duration, done: Option<Done>) {
        for slot in &slots {
            // One that was assigned while we stop has no lane.
            if let Some(lane) = self.lanes.get_mut(slot) {
                let amount = lane.drain();
                self.left(amount);
            }
        }
        self.drains.push(Drain::new(slots, timeout, done));
    }

    fn poll_drains(&mut self, cx: &mut Context<'_>) -> bool {
        let mut drains = std::mem::take(&mut self.drains);
        let before = drains.len();
        drains.retain_mut(|drain| {
            drain.lanes.retain(|&slot| {
                let busy = self.lanes.get(&slot).is_some_and(Lane::is_busy);
                if !busy {
                    self.remove(slot);
                }
                busy
            });
            if !drain.lanes.is_empty() && drain.poll_deadline(cx).is_ready() {
                let lanes = std::mem::take(&mut drain.lanes);
                let tasks = lanes.into_iter().filter_map(|slot| self.remove(slot));
                drain.let_go(tasks.collect());
            }
            drain.poll_end(cx).is_pending()
        });
        self.drains = drains;
        self.drains.len() < before
    }

    /// Ends a lane. Gives the record at work, with its task.
    fn remove(&mut self, slot: SlotId) -> Option<(Task<()>, Record)> {
        let mut lane = self.lanes.remove(&slot)?;
        let (amount, task) = lane.leave();
        self.busy -= usize::from(task.is_some());
        self.left(amount);
        self.store.not_asked(slot);
        task
    }

    /// Records were let go unfinished.
    fn left(&mut self, amount: Amount) {
        if self.stopping {
            self.summary.left += amount.records;
        } else {
            self.summary.revoked += amount.records;
        }
        self.finished += amount;
    }
}
