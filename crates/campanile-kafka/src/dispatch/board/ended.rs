//! What follows when the work on a record has ended.

use std::time::Duration;

use campanile_core::{BoxError, Output, Record};
use campanile_idempotency::{Backoff, Settled};
use tracing::field::debug;

use super::Board;
use crate::dead_letter::Cause;
use crate::dispatch::attempt::Ended;
use crate::dispatch::strand::{State, StrandId};
use crate::dispatch::trouble::{STORE, waits_for};
use crate::error::{ConsumerError, chain};
use crate::given_up::{Burial, Fate};
use crate::retry_topics::origin;
use crate::verdict::{Verdict, asked_the_store, judge};

impl Board {
    /// The work on a record has ended. An error ends the consumer.
    pub(in crate::dispatch) fn ended(
        &mut self,
        id: StrandId,
        ended: Ended,
    ) -> Option<ConsumerError> {
        // One that has been let go already ended too late: it finishes nothing, and commits nothing.
        let head = &mut self.strands.get_mut(id)?.head;
        head.state = State::Ended;
        head.waited = None;
        self.not_at_work(id);
        match ended {
            Ended::Processed { outputs } => {
                self.answered(id);
                self.summary.processed += 1;
                self.flood.finished(false);
                self.finish(id, outputs);
            }
            Ended::Skipped => {
                self.summary.skipped += 1;
                self.flood.finished(false);
                self.finish(id, Vec::new());
            }
            Ended::Buried(_passage) => {
                self.summary.dead_lettered += 1;
                self.flood.finished(true);
                self.finish(id, Vec::new());
            }
            Ended::Unburied(why) => return self.unburied(id, why),
            // It comes again as another record: that it failed says nothing of a flood of dead
            // letters, for or against.
            Ended::Deferred => {
                self.summary.deferred += 1;
                self.finish(id, Vec::new());
            }
            Ended::NotDeferred(after) => drop(self.wait(id, after, None)),
            Ended::Held => self.due_again(id),
            Ended::Left => self.leave(id),
            Ended::Panicked(text) => {
                self.store.not_asked(id);
                self.retry(id, None, &format!("panicked: {text}"));
            }
            Ended::Failed(error) => return self.failed(id, error),
            Ended::Unsendable(error) => {
                self.answered(id);
                let help = "its outputs are not known, and to commit it would lose them";
                return Some(self.halt(id, Burial::None, help, error));
            }
        }
        None
    }

    pub(super) fn failed(&mut self, id: StrandId, error: BoxError) -> Option<ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        let text = || chain(&*error);
        let verdict = judge(&error, &self.policies.classifiers);
        if !matches!(verdict, Verdict::StoreDown) {
            match asked_the_store(&error) {
                true => self.answered(id),
                false => self.store.not_asked(id),
            }
        }
        match verdict {
            Verdict::Retry { after } => self.retry(id, after, &text()),
            Verdict::Wait { after, settled } => {
                self.summary.waited += 1;
                self.head(id).meets(text(), waits_for(&*error));
                let after = self.wait(id, after, settled).map(debug);
                tracing::debug!(record = %at, origin, error = text(), after, "waits");
            }
            Verdict::StoreDown => {
                self.summary.waited += 1;
                self.head(id).meets(text(), STORE);
                self.store.failed(id, &text());
                self.wait_alone(id);
            }
            Verdict::GiveUp { burial, reason, help } => match &self.policies.given_up {
                Fate::Skip => {
                    tracing::warn!(record = %at, origin, error = text(), "given up and skipped");
                    self.skip(id, burial, reason);
                }
                Fate::DeadLetter(letters) => {
                    let letters = letters.clone();
                    self.bury(id, letters, burial, Cause::of(&*error), reason);
                }
                Fate::Stop => return Some(self.halt(id, burial, help, error)),
            },
            Verdict::Skip { burial, reason } => {
                tracing::info!(record = %at, origin, error = text(), "skipped");
                self.skip(id, burial, reason);
            }
            Verdict::Stop { burial, help } => return Some(self.halt(id, burial, help, error)),
        }
        None
    }

    /// The record is tried again after this time, or after the driver's own back-off. Gives the time;
    /// `None` if somebody else is to try it.
    pub(super) fn wait(
        &mut self,
        id: StrandId,
        after: Option<Duration>,
        settled: Option<Settled>,
    ) -> Option<Duration> {
        if self.lane(id).draining {
            self.leave(id);
            return None;
        }
        let head = self.head(id);
        let after = after.unwrap_or_else(|| {
            head.tries = head.tries.saturating_add(1);
            Backoff::default().delay(head.tries)
        });
        head.waited.clone_from(&settled);
        let wait = self.waits.start(id, after, settled);
        self.head(id).state = State::Waiting(wait);
        Some(after)
    }

    /// The store has answered this record.
    fn answered(&mut self, id: StrandId) {
        self.store.answered(id);
        // What was away for this one may be back for others.
        if self.store.is_back() || self.head(id).unanswered > 0 {
            self.wake_unanswered();
        }
    }

    /// Lists what waits for the store.
    pub(super) fn wake_unanswered(&mut self) {
        for id in std::mem::take(&mut self.unanswered) {
            if let Some(strand) = self.strands.get_mut(id) {
                strand.head.unanswered = 0;
                if let State::Waiting(_) = strand.head.state {
                    self.list(id);
                }
            }
        }
    }

    /// The store did not answer this record.
    fn wait_alone(&mut self, id: StrandId) {
        let head = self.head(id);
        head.unanswered = head.unanswered.saturating_add(1);
        let times = head.unanswered;
        if times == 1 {
            self.unanswered.push(id);
        }
        let after = self.store.back_off(times);
        self.wait(id, Some(after), None);
    }

    /// The record is tried again as soon as it may be dispatched.
    fn due_again(&mut self, id: StrandId) {
        if self.lane(id).draining {
            return self.leave(id);
        }
        self.list(id);
    }

    fn finish(&mut self, id: StrandId, outputs: Vec<Output>) {
        let far = self.far();
        let head = self.head(id);
        let (delivery, amount) = (head.delivery, head.amount());
        let at = (!outputs.is_empty()).then(|| head.record.coordinates().clone());
        let lane = self.lane(id);
        let pending = at.map(|at| lane.pending(at, outputs));
        lane.let_go(amount);
        let near = lane.finish(delivery, pending, far);
        if !lane.entries_known {
            self.see_retention(id);
        }
        self.finished += amount;
        self.next_of(id);
        self.list_all(near);
    }

    /// The record at work is let go unfinished.
    fn leave(&mut self, id: StrandId) {
        let amount = self.head(id).amount();
        self.lane(id).let_go(amount);
        self.left(amount);
        self.next_of(id);
    }

    /// The record is dealt with. Behind it there may be another.
    fn next_of(&mut self, id: StrandId) {
        if self.strand(id).next() {
            self.turns.push(id);
        } else {
            self.remove(id);
        }
    }

    pub(super) fn record(&mut self, id: StrandId) -> Record {
        self.head(id).record.clone()
    }
}
