//! All lanes, and whose turn it is: everything of the dispatcher that does not know the service.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_idempotency::{Backoff, Settled};
use tokio::sync::mpsc::UnboundedSender;

use super::attempt::{Ended, Report, Reported};
use super::drain::Drain;
use super::lane::{HeadState, Lane};
use super::store::StoreHealth;
use super::waits::Waits;
use crate::budget::Amount;
use crate::consumer::Policies;
use crate::error::{ConsumerError, chain};
use crate::given_up::{Burial, GivenUp, leave, skip};
use crate::intake::Done;
use crate::slot::{Slot, SlotId};
use crate::summary::Summary;
use crate::task::Task;
use crate::verdict::{Verdict, asked_the_store, judge};

pub(super) struct Board {
    lanes: HashMap<SlotId, Lane>,
    /// Whose turn comes, in this order. Who has nothing due any more is passed over.
    turns: VecDeque<SlotId>,
    /// How many lanes have a record at work.
    busy: usize,
    waits: Waits,
    store: StoreHealth,
    drains: Vec<Drain>,
    stopping: bool,
    policies: Policies,
    reports: UnboundedSender<Reported>,
    /// What is out of memory, or soon will be, since the intake was last told.
    finished: Amount,
    summary: Summary,
}

impl Board {
    pub(super) fn new(policies: Policies, reports: UnboundedSender<Reported>) -> Self {
        Self {
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            busy: 0,
            waits: Waits::default(),
            store: StoreHealth::default(),
            drains: Vec::new(),
            stopping: false,
            policies,
            reports,
            finished: Amount::default(),
            summary: Summary::default(),
        }
    }

    pub(super) fn assigned(&mut self, slot: Arc<Slot>) {
        // One that comes while we stop is not begun with.
        if !self.stopping {
            self.lanes.insert(slot.id, Lane::new(slot));
        }
    }

    pub(super) fn received(&mut self, records: Vec<(SlotId, Record)>) {
        for (slot, record) in records {
            match self.lanes.get_mut(&slot) {
                Some(lane) if !lane.is_draining() => {
                    self.summary.received += 1;
                    lane.push(record);
                    self.list(slot);
                }
                // Revoked while it was on its way.
                _ => self.finished.add(record.size() as u64),
            }
        }
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

    /// Whether everything has ended since it was told to stop.
    pub(super) fn is_idle(&self) -> bool {
        self.drains.is_empty()
    }

    /// The lane whose record is to be dispatched next, if one may be dispatched.
    pub(super) fn next(&mut self) -> Option<SlotId> {
        if self.busy >= self.policies.max_in_flight || !self.store.allows() {
            return None;
        }
        while let Some(&slot) = self.turns.front() {
            match self.lanes.get_mut(&slot) {
                Some(lane) if lane.is_due() => return Some(slot),
                Some(lane) => lane.listed = false,
                None => {}
            }
            self.turns.pop_front();
        }
        None
    }

    /// The record of the lane whose turn it is, and how to tell of its end.
    pub(super) fn begin(&mut self) -> Option<(Record, Report)> {
        let slot = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&slot)?;
        lane.listed = false;
        let record = lane.due()?.record.clone();
        Some((record, self.report(slot)))
    }

    /// The record of this lane is at work.
    pub(super) fn begun(&mut self, slot: SlotId, task: Task<()>) {
        if let Some(head) = self.lanes.get_mut(&slot).and_then(Lane::head) {
            head.state = HeadState::Running(task);
            self.busy += 1;
            self.store.dispatched(slot);
        }
    }

    /// The work on a record has ended. An error ends the consumer.
    pub(super) fn ended(&mut self, slot: SlotId, ended: Ended) -> Option<ConsumerError> {
        // One that is let go already ended too late.
        let lane = self.lanes.get_mut(&slot)?;
        let head = lane.head()?;
        if let HeadState::Running(_) = head.state {
            head.state = HeadState::Due;
            self.busy -= 1;
        }
        match ended {
            Ended::Processed => {
                self.store.answered(slot);
                self.summary.processed += 1;
                self.finish(slot);
            }
            Ended::Skipped => {
                self.store.answered(slot);
                self.summary.skipped += 1;
                self.finish(slot);
            }
            Ended::Left => self.leave(slot),
            Ended::Panicked(text) => {
                tracing::warn!(record = %head.record.coordinates(), panic = text, "panicked");
                self.store.not_asked(slot);
                self.again(slot, Again::Retry, None, None);
            }
            Ended::Failed(error) => {
                if asked_the_store(&error) {
                    self.store.answered(slot);
                } else {
                    self.store.not_asked(slot);
                }
                return self.failed(slot, error);
            }
        }
        None
    }

    /// Waits, drains and the store's next probe. Whether anything has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.store.poll(cx).is_ready();
        while let std::task::Poll::Ready((slot, id)) = self.waits.poll_next(cx) {
            changed = true;
            if let Some(head) = self.lanes.get_mut(&slot).and_then(Lane::head)
                && matches!(head.state, HeadState::Waiting(waiting) if waiting == id)
            {
                head.state = HeadState::Due;
                self.list(slot);
            }
        }
        changed | self.poll_drains(cx)
    }

    /// What the intake should know.
    pub(super) fn take_finished(&mut self) -> Amount {
        std::mem::take(&mut self.finished)
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary
    }

    fn failed(&mut self, slot: SlotId, error: BoxError) -> Option<ConsumerError> {
        let at = self
            .lanes
            .get_mut(&slot)?
            .head()?
            .record
            .coordinates()
            .clone();
        match judge(&error, &self.policies.classifiers) {
            Verdict::Retry { after } => {
                tracing::warn!(record = %at, error = chain(&*error), "failed, to be tried again");
                self.again(slot, Again::Retry, after, None);
            }
            Verdict::Wait { after, settled } => {
                tracing::debug!(record = %at, error = chain(&*error), "waits");
                self.again(slot, Again::Wait, after, settled);
            }
            Verdict::StoreDown => {
                self.store.failed(slot, &chain(&*error));
                self.again(slot, Again::StoreDown, None, None);
            }
            Verdict::GiveUp {
                burial,
                reason,
                help,
            } => match self.policies.given_up {
                GivenUp::Skip => {
                    tracing::warn!(record = %at, error = chain(&*error), "given up and skipped");
                    self.skip(slot, burial, reason);
                }
                GivenUp::Stop => return Some(self.halt(slot, burial, help, error)),
            },
            Verdict::Skip { burial, reason } => {
                tracing::info!(record = %at, error = chain(&*error), "skipped");
                self.skip(slot, burial, reason);
            }
            Verdict::Stop { burial, help } => return Some(self.halt(slot, burial, help, error)),
        }
        None
    }

    /// The record stays at the head of its lane, until its time has come.
    fn again(
        &mut self,
        slot: SlotId,
        why: Again,
        after: Option<Duration>,
        settled: Option<Settled>,
    ) {
        match why {
            Again::Retry => self.summary.retried += 1,
            Again::Wait | Again::StoreDown => self.summary.waited += 1,
        }
        let Some(lane) = self.lanes.get_mut(&slot) else {
            return;
        };
        if lane.is_draining() {
            return self.leave(slot);
        }
        let Some(head) = lane.head() else { return };
        if why == Again::StoreDown {
            return self.list(slot);
        }
        let after = after.unwrap_or_else(|| {
            head.tries = head.tries.saturating_add(1);
            Backoff::default().delay(head.tries)
        });
        head.state = HeadState::Waiting(self.waits.start(slot, after, settled));
    }

    fn skip(&mut self, slot: SlotId, burial: Burial, reason: String) {
        let report = self.report(slot);
        let task = Task::spawn(async move {
            report.send(match skip(burial, reason).await {
                Ok(()) => Ended::Skipped,
                Err(error) => Ended::Failed(error.into()),
            });
        });
        self.begun(slot, task);
    }

    /// The consumer stops at this record, whose lock is let go first.
    fn halt(
        &mut self,
        slot: SlotId,
        burial: Burial,
        help: &'static str,
        error: BoxError,
    ) -> ConsumerError {
        let report = self.report(slot);
        let record = self
            .lanes
            .get_mut(&slot)
            .and_then(Lane::head)
            .map(|h| h.record.clone());
        let record = record.expect("its error was just judged");
        let at = record.coordinates().clone();
        let task = Task::spawn(async move {
            if let Err(error) = leave(burial).await {
                tracing::warn!(error = chain(&error), "the lock expires by itself");
            }
            record.let_go().await;
            report.send(Ended::Left);
        });
        self.begun(slot, task);
        ConsumerError::stopped(&at, help, error)
    }

    fn finish(&mut self, slot: SlotId) {
        let Some(lane) = self.lanes.get_mut(&slot) else {
            return;
        };
        let amount = lane.finish();
        self.release(amount);
        self.list(slot);
    }

    /// The record at work is let go unfinished.
    fn leave(&mut self, slot: SlotId) {
        let Some(lane) = self.lanes.get_mut(&slot) else {
            return;
        };
        let (amount, _) = lane.leave();
        self.left(amount);
    }

    fn left(&mut self, amount: Amount) {
        if self.stopping {
            self.summary.left += amount.records;
        } else {
            self.summary.revoked += amount.records;
        }
        self.release(amount);
    }

    fn release(&mut self, amount: Amount) {
        self.finished.records += amount.records;
        self.finished.bytes += amount.bytes;
    }

    /// Puts a lane that has something due at the end of the turns.
    fn list(&mut self, slot: SlotId) {
        if let Some(lane) = self.lanes.get_mut(&slot)
            && lane.is_due()
            && !lane.listed
        {
            lane.listed = true;
            self.turns.push_back(slot);
        }
    }

    fn report(&self, slot: SlotId) -> Report {
        Report {
            slot,
            reports: self.reports.clone(),
        }
    }

    fn drain(&mut self, slots: Vec<SlotId>, timeout: Duration, done: Option<Done>) {
        let mut busy = Vec::new();
        for slot in slots {
            let Some(lane) = self.lanes.get_mut(&slot) else {
                continue;
            };
            let amount = lane.drain();
            self.left(amount);
            busy.push(slot);
        }
        self.drains.push(Drain::new(busy, timeout, done));
    }

    fn poll_drains(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = false;
        let mut drains = std::mem::take(&mut self.drains);
        drains.retain_mut(|drain| {
            drain.busy.retain(|slot| {
                let busy = self.lanes.get(slot).is_some_and(Lane::is_busy);
                if !busy {
                    self.remove(*slot);
                }
                busy
            });
            if !drain.busy.is_empty() && drain.poll_deadline(cx).is_ready() {
                let slots = std::mem::take(&mut drain.busy);
                drain.let_go(
                    slots
                        .into_iter()
                        .filter_map(|slot| self.remove(slot))
                        .collect(),
                );
            }
            let over = drain.poll_end(cx).is_ready();
            changed |= over;
            !over
        });
        self.drains = drains;
        changed
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
}

/// Why a record is tried again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Retry,
    Wait,
    StoreDown,
}
