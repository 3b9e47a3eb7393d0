//! What follows when the work on a record has ended.

use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_idempotency::{Backoff, Settled};
use tracing::field::debug;

use super::Board;
use crate::dead_letter::Cause;
use crate::dispatch::attempt::Ended;
use crate::dispatch::lane::HeadState;
use crate::error::{ConsumerError, chain};
use crate::given_up::Fate;
use crate::retry_topics::origin;
use crate::slot::SlotId;
use crate::verdict::{Verdict, asked_the_store, judge};

impl Board {
    /// The work on a record has ended. An error ends the consumer.
    pub(in crate::dispatch) fn ended(
        &mut self,
        slot: SlotId,
        ended: Ended,
    ) -> Option<ConsumerError> {
        // One that has been let go already ended too late: it finishes nothing, and commits nothing.
        let lane = self.lanes.get_mut(&slot)?;
        lane.head().state = HeadState::Due;
        lane.head().waited = None;
        self.busy -= 1;
        match ended {
            Ended::Processed => {
                self.store.answered(slot);
                self.summary.processed += 1;
                self.flood.finished(false);
                self.finish(slot);
            }
            Ended::Skipped => {
                self.summary.skipped += 1;
                self.flood.finished(false);
                self.finish(slot);
            }
            Ended::Buried(_passage) => {
                self.summary.dead_lettered += 1;
                self.flood.finished(true);
                self.finish(slot);
            }
            Ended::Unburied(why) => return self.unburied(slot, why),
            // It comes again as another record: that it failed says nothing of a flood of dead
            // letters, for or against.
            Ended::Deferred => {
                self.summary.deferred += 1;
                self.finish(slot);
            }
            Ended::NotDeferred(after) => drop(self.wait(slot, after, None)),
            Ended::Held => self.due_again(slot),
            Ended::Left => self.leave(slot),
            Ended::Panicked(text) => self.panicked(slot, &text),
            Ended::Failed(error) => return self.failed(slot, error),
        }
        None
    }

    /// User code has panicked over this lane's record.
    pub(in crate::dispatch) fn panicked(&mut self, slot: SlotId, text: &str) {
        self.store.not_asked(slot);
        self.retry(slot, None, &format!("panicked: {text}"));
    }

    pub(super) fn failed(&mut self, slot: SlotId, error: BoxError) -> Option<ConsumerError> {
        let record = self.record(slot);
        let (at, origin) = (record.coordinates(), origin(&record));
        let text = || chain(&*error);
        let verdict = judge(&error, &self.policies.classifiers);
        if let Verdict::StoreDown = verdict {
            self.store.failed(slot, &text());
        } else if asked_the_store(&error) {
            self.store.answered(slot);
        } else {
            self.store.not_asked(slot);
        }
        match verdict {
            Verdict::Retry { after } => self.retry(slot, after, &text()),
            Verdict::Wait { after, settled } => {
                self.summary.waited += 1;
                let after = self.wait(slot, after, settled).map(debug);
                tracing::debug!(record = %at, origin, error = text(), after, "waits");
            }
            Verdict::StoreDown => {
                self.summary.waited += 1;
                self.due_again(slot);
            }
            Verdict::GiveUp { burial, reason, help } => match &self.policies.given_up {
                Fate::Skip => {
                    tracing::warn!(record = %at, origin, error = text(), "given up and skipped");
                    self.skip(slot, burial, reason);
                }
                Fate::DeadLetter(letters) => {
                    let letters = letters.clone();
                    self.bury(slot, letters, burial, Cause::of(&*error), reason);
                }
                Fate::Stop => return Some(self.halt(slot, burial, help, error)),
            },
            Verdict::Skip { burial, reason } => {
                tracing::info!(record = %at, origin, error = text(), "skipped");
                self.skip(slot, burial, reason);
            }
            Verdict::Stop { burial, help } => return Some(self.halt(slot, burial, help, error)),
        }
        None
    }

    /// The record is tried again after this time, or after the driver's own back-off. Gives the time;
    /// `None` if somebody else is to try it.
    pub(super) fn wait(
        &mut self,
        slot: SlotId,
        after: Option<Duration>,
        settled: Option<Settled>,
    ) -> Option<Duration> {
        if self.lane(slot).is_draining() {
            self.leave(slot);
            return None;
        }
        let head = self.lane(slot).head();
        let after = after.unwrap_or_else(|| {
            head.tries = head.tries.saturating_add(1);
            Backoff::default().delay(head.tries)
        });
        head.waited.clone_from(&settled);
        let id = self.waits.start(slot, after, settled);
        self.lane(slot).head().state = HeadState::Waiting(id);
        Some(after)
    }

    /// The record is tried again as soon as it may be dispatched.
    fn due_again(&mut self, slot: SlotId) {
        if self.lane(slot).is_draining() {
            return self.leave(slot);
        }
        self.list(slot);
    }

    fn finish(&mut self, slot: SlotId) {
        let amount = self.lane(slot).finish();
        self.finished += amount;
        self.list(slot);
    }

    /// The record at work is let go unfinished.
    fn leave(&mut self, slot: SlotId) {
        let (amount, _) = self.lane(slot).leave();
        self.left(amount);
    }

    pub(super) fn record(&mut self, slot: SlotId) -> Record {
        self.lane(slot).head().record.clone()
    }
}
