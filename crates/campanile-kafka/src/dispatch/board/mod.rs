//! All lanes and strands, and whose turn it is: everything of the dispatcher that does not know the
//! service.

mod ended;
mod given_up;
mod look;
mod outputs;
mod retry;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{ConfigError, Record};
use tokio::sync::mpsc::UnboundedSender;

use super::attempt::{Report, Reported};
use super::drain::Drain;
use super::lane::Lane;
use super::pace::Pace;
use super::stalls::Stalls;
use super::store::StoreHealth;
use super::strand::{Head, State, Strand, StrandId, Strands};
use super::turns::Turns;
use super::waits::Waits;
use crate::budget::Amount;
use crate::consumer::Policies;
use crate::error::ConsumerError;
use crate::flood::Flood;
use crate::given_up::Fate;
use crate::handle::{Gate, Shutdown};
use crate::hash::ByNumber;
use crate::intake::{Done, Received};
use crate::order::WHOLE;
use crate::slot::{Slot, SlotId};
use crate::summary::Summary;
use crate::task::Task;

pub(super) struct Board {
    lanes: ByNumber<SlotId, Lane>,
    strands: Strands,
    /// Whose turn comes, in this order. Who has ended by then is passed over.
    turns: Turns,
    /// How many records are at work.
    busy: usize,
    waits: Waits,
    store: StoreHealth,
    /// What the store did not answer, and some that it has since.
    unanswered: Vec<StrandId>,
    stalls: Stalls,
    drains: Vec<Drain>,
    stopping: bool,
    /// Outputs fill the budget.
    held_back: bool,
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
            lanes: ByNumber::default(),
            strands: Strands::default(),
            turns: Turns::default(),
            busy: 0,
            waits: Waits::default(),
            store: StoreHealth::default(),
            unanswered: Vec::new(),
            stalls: Stalls::new(policies.stall),
            drains: Vec::new(),
            stopping: false,
            held_back: false,
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
            self.lanes.insert(slot.id, Lane::new(slot, self.policies.keeps_start));
        }
        Ok(())
    }

    /// An error is of a record that this consumer must not process.
    pub(super) fn received(&mut self, records: Vec<Received>) -> Result<(), ConsumerError> {
        let mut checked = Ok(());
        for Received { slot, record, due } in records {
            match self.lanes.get_mut(&slot) {
                Some(lane) if !lane.draining => {
                    self.summary.received += 1;
                    let line = if lane.rung().is_some() {
                        checked = checked.and(self.policies.sources.check(&record));
                        Some(WHOLE)
                    } else {
                        self.policies.order.line(&record)
                    };
                    // In any case, so that nothing behind it is committed.
                    let queued = lane.deliver(record, due);
                    let strand = line.and_then(|line| lane.strands.get(&line));
                    match strand.and_then(|&id| self.strands.get_mut(id)) {
                        Some(strand) => strand.push(queued),
                        None => {
                            let id = self.strands.insert(slot, line, queued);
                            line.map(|line| lane.strands.insert(line, id));
                            self.turns.push(id);
                        }
                    }
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

    /// Whose record is to be dispatched next, if one may be dispatched.
    pub(super) fn next(&mut self) -> Option<StrandId> {
        let full = self.busy >= self.policies.max_in_flight;
        if full || !self.gate.is_open() || !self.store.allows() {
            return None;
        }
        let far = self.far();
        let most = self.most_of_a_lane();
        while let Some(id) = self.turns.front() {
            let strand = self.strands.get_mut(id);
            let mut instead = None;
            if let Some(Strand { slot, head, .. }) = strand
                && let Some(lane) = self.lanes.get_mut(slot)
            {
                if let Some(left) = head.early(lane.rung()) {
                    head.state = State::Waiting(self.waits.start(id, left, None));
                    instead = lane.crowded.pop_front();
                } else if lane.hold(id, head.delivery, far) {
                    head.state = State::Ahead;
                    instead = lane.crowded.pop_front();
                } else if lane.busy >= most {
                    head.state = State::Crowded;
                    lane.crowded.push_back(id);
                } else {
                    return Some(id);
                }
            }
            self.turns.pop();
            // It does not take the place that it was called for.
            self.list_all(instead);
        }
        None
    }

    /// How many records of one partition may be at work: so many that one whose handlers are slow does
    /// not hold up the others.
    fn most_of_a_lane(&self) -> usize {
        match self.lanes.len() {
            0 | 1 => self.policies.max_in_flight,
            _ => (self.policies.max_in_flight / 2).max(1),
        }
    }

    /// The record whose turn it is.
    pub(super) fn due(&mut self, id: StrandId) -> &Record {
        &self.strand(id).head.record
    }

    pub(super) fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Takes this turn: its record, and how to tell of its end.
    pub(super) fn begin(&mut self, id: StrandId) -> (Record, Report) {
        self.turns.pop();
        self.at_work(id, State::Here);
        self.store.dispatched(id);
        (self.record(id), self.report(id))
    }

    /// How the handlers of its partition do, if it has not ended.
    pub(super) fn pace(&mut self, id: StrandId) -> Option<&mut Pace> {
        let slot = self.strands.get_mut(id)?.slot;
        self.lanes.get_mut(&slot).map(|lane| &mut lane.pace)
    }

    /// This task has it from now on.
    pub(super) fn has(&mut self, id: StrandId, task: Task<()>) {
        self.head(id).state = State::Running(task);
    }

    /// Waits, drains, the store's next probe and the gate. Whether anything has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.store.poll(cx).is_ready();
        if self.store.is_back() {
            self.wake_unanswered();
        }
        if self.gate.poll(cx) {
            self.flood.clear();
            changed = true;
        }
        while let Poll::Ready((id, wait)) = self.waits.poll_next(cx) {
            changed = true;
            if let Some(strand) = self.strands.get_mut(id)
                && matches!(strand.head.state, State::Waiting(of) if of == wait)
            {
                self.list(id);
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

    /// One that must be there, since its record is being dealt with.
    fn strand(&mut self, id: StrandId) -> &mut Strand {
        let strand = self.strands.get_mut(id);
        strand.expect("a strand does not end while its record is dealt with")
    }

    fn head(&mut self, id: StrandId) -> &mut Head {
        &mut self.strand(id).head
    }

    /// The lane of such a one.
    fn lane(&mut self, id: StrandId) -> &mut Lane {
        let slot = self.strand(id).slot;
        let lane = self.lanes.get_mut(&slot);
        lane.expect("a lane is not removed before its strands")
    }

    fn at_work(&mut self, id: StrandId, state: State) {
        self.head(id).state = state;
        self.lane(id).busy += 1;
        self.busy += 1;
    }

    /// A record is not at work any more.
    fn not_at_work(&mut self, id: StrandId) {
        self.busy -= 1;
        let lane = self.lane(id);
        lane.busy -= 1;
        // One for its place, and one more: where others have gone, there is room for that as well.
        let next = [lane.crowded.pop_front(), lane.crowded.pop_front()];
        self.list_all(next.into_iter().flatten());
    }

    /// Puts it at the end of the turns.
    fn list(&mut self, id: StrandId) {
        self.head(id).state = State::Due;
        self.turns.push(id);
    }

    /// Those of them that have not ended.
    fn list_all(&mut self, ids: impl IntoIterator<Item = StrandId>) {
        for id in ids {
            if self.strands.get_mut(id).is_some() {
                self.list(id);
            }
        }
    }

    fn report(&self, id: StrandId) -> Report {
        Report { strand: id, reports: self.reports.clone(), quick: true }
    }

    /// Begins nothing more of these, and lets go of all that are not at work.
    fn drain(&mut self, slots: Vec<SlotId>, timeout: Duration, done: Option<Done>) {
        let mut any = false;
        for slot in &slots {
            // One that was assigned while we stop has no lane.
            if let Some(lane) = self.lanes.get_mut(slot) {
                any |= !std::mem::replace(&mut lane.draining, true);
            }
        }
        if any {
            self.let_go_of_what_waits();
        }
        self.drains.push(Drain::new(slots, timeout, done));
    }

    fn let_go_of_what_waits(&mut self) {
        let mut ended = Vec::new();
        let mut left = Amount::default();
        for (id, strand) in self.strands.iter_mut() {
            let Some(lane) = self.lanes.get(&strand.slot).filter(|lane| lane.draining) else {
                continue;
            };
            let mut amount = Amount::default();
            strand.drain().for_each(|record| amount += Amount::of(&record));
            if !strand.head.is_running() {
                amount += strand.head.amount();
                ended.push(id);
            }
            lane.let_go(amount);
            left += amount;
        }
        ended.into_iter().for_each(|id| drop(self.remove(id)));
        self.left(left);
    }

    fn poll_drains(&mut self, cx: &mut Context<'_>) -> bool {
        let mut drains = std::mem::take(&mut self.drains);
        let before = drains.len();
        drains.retain_mut(|drain| {
            drain.lanes.retain(|slot| {
                let busy = self.lanes.get(slot).is_some_and(|lane| lane.busy > 0);
                if !busy {
                    self.lanes.remove(slot);
                }
                busy
            });
            if !drain.lanes.is_empty() && drain.poll_deadline(cx).is_ready() {
                let tasks = self.take_back(&drain.lanes);
                drain.lanes.clear();
                drain.let_go(tasks);
            }
            drain.poll_end(cx).is_pending()
        });
        self.drains = drains;
        self.drains.len() < before
    }

    /// Ends these lanes. Gives their records at work, each with its task.
    fn take_back(&mut self, slots: &[SlotId]) -> Vec<(Task<()>, Record)> {
        let running = self.strands.iter_mut().filter(|(_, strand)| slots.contains(&strand.slot));
        let running: Vec<StrandId> = running.map(|(id, _)| id).collect();
        let mut tasks = Vec::new();
        for id in running {
            let Strand { slot, head, .. } = self.remove(id);
            if let Some(lane) = self.lanes.get(&slot) {
                lane.let_go(head.amount());
            }
            self.left(head.amount());
            if let State::Running(task) = head.state {
                self.busy -= 1;
                tasks.push((task, head.record));
            }
        }
        slots.iter().for_each(|slot| drop(self.lanes.remove(slot)));
        tasks
    }

    /// Ends a strand that has no record but its first, which is finished or let go.
    fn remove(&mut self, id: StrandId) -> Strand {
        self.store.not_asked(id);
        let strand = self.strands.remove(id);
        if let (Some(line), Some(lane)) = (strand.line, self.lanes.get_mut(&strand.slot)) {
            lane.strands.remove(&line);
        }
        strand
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
