//! Outcomes: what follows when the work on a record has ended.

use std::time::Duration;

use campanile_core::{BoxError, Output};
use campanile_idempotency::{Backoff, Settled};
use tracing::field::debug;

use super::Scheduler;
use super::queue::{QueueId, State};
use super::trouble::{STORE, waits_for};
use crate::dead_letter::Cause;
#[cfg(test)]
use crate::driver::Amount;
use crate::driver::attempt::Outcome;
#[cfg(test)]
use crate::driver::simulation::{Bug, is_planted};
use crate::driver::verdict::{Verdict, asked_the_store, judge};
use crate::error::{ConsumerError, chain};
use crate::given_up::{Burial, Fate};
use crate::retry_topics::origin;

impl Scheduler {
    /// Handles the end of a queue's run. `outcome` is the outcome of its first record.
    ///
    /// A late report about a removed queue is ignored: it finishes nothing and commits nothing.
    ///
    /// # Errors
    /// Fails if the outcome stops the consumer.
    pub(super) fn ended(&mut self, id: QueueId, outcome: Outcome) -> Result<(), ConsumerError> {
        let Some(queue) = self.queues.get_mut(id) else {
            return Ok(());
        };
        queue.head.waited_for = None;
        if let Outcome::Processed { outputs } = outcome {
            self.processed(id, outputs, true);
            return Ok(());
        }
        self.not_in_flight(id);
        match outcome {
            Outcome::Processed { .. } => unreachable!("returned above"),
            Outcome::Skipped => {
                self.summary.skipped += 1;
                self.flood.finished(false);
                self.finish(id, Vec::new());
            }
            Outcome::DeadLettered(_passage) => {
                self.summary.dead_lettered += 1;
                self.flood.finished(true);
                self.finish(id, Vec::new());
            }
            Outcome::NotDeadLettered(why) => return self.not_dead_lettered(id, why),
            // The record comes back as a copy, so the flood guard counts it neither as a dead
            // letter nor as a record that was finished otherwise.
            Outcome::Deferred => {
                self.summary.deferred += 1;
                self.finish(id, Vec::new());
            }
            Outcome::NotDeferred(after) => drop(self.wait(id, after, None)),
            Outcome::Held => self.due_again(id),
            Outcome::Left => self.leave(id),
            Outcome::Panicked(text) => {
                self.breaker.not_asked(id);
                self.retry(id, None, &format!("panicked: {text}"));
            }
            Outcome::Unready(error) => {
                self.breaker.not_asked(id);
                self.due_again(id);
                return Err(ConsumerError::Service(error));
            }
            Outcome::Failed(error) => return self.failed(id, error),
            Outcome::Unsendable(error) => {
                self.answered(id);
                let help = "its outputs are unknown, and committing its offset would lose them";
                return Err(self.halt(id, Burial::None, help, error));
            }
        }
        Ok(())
    }

    /// Handles a processed first record. `ended` is set if the run has ended with this record.
    pub(super) fn processed(&mut self, id: QueueId, outputs: Vec<Output>, ended: bool) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        queue.head.waited_for = None;
        queue.running -= 1;
        if ended {
            self.not_in_flight(id);
        }
        self.answered(id);
        self.summary.processed += 1;
        self.flood.finished(false);
        self.finish(id, outputs);
    }

    /// Handles a run that was stopped before its next record.
    pub(super) fn stopped(&mut self, id: QueueId) {
        if self.queues.get_mut(id).is_some() {
            self.breaker.not_asked(id);
            self.not_in_flight(id);
            self.due_again(id);
        }
    }

    /// Handles an error of the service.
    ///
    /// # Errors
    /// Fails if the error stops the consumer.
    pub(super) fn failed(&mut self, id: QueueId, error: BoxError) -> Result<(), ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        let text = || chain(&*error);
        let verdict = judge(&error, &self.policies.classifiers);
        if !matches!(verdict, Verdict::StoreDown) {
            match asked_the_store(&error) {
                true => self.answered(id),
                false => self.breaker.not_asked(id),
            }
        }
        match verdict {
            Verdict::Retry { after } => self.retry(id, after, &text()),
            Verdict::Wait { after, settled } => {
                self.summary.waited += 1;
                self.queue(id).meets(text(), waits_for(&*error));
                let after = self.wait(id, after, settled).map(debug);
                tracing::debug!(
                    record = %at,
                    origin,
                    error = text(),
                    after,
                    "record cannot be processed yet; waiting"
                );
            }
            Verdict::StoreDown => {
                self.summary.waited += 1;
                self.queue(id).meets(text(), STORE);
                self.breaker.failed(id, &text());
                self.wait_for_store(id);
            }
            Verdict::GiveUp { burial, reason, help } => match &self.policies.given_up {
                Fate::Skip => {
                    tracing::warn!(
                        record = %at,
                        origin,
                        error = text(),
                        "record given up; skipping it"
                    );
                    self.skip(id, burial, reason);
                }
                Fate::DeadLetter(letters) => {
                    let letters = letters.clone();
                    self.dead_letter(id, letters, burial, Cause::of(&*error), reason);
                }
                Fate::Stop => return Err(self.halt(id, burial, help, error)),
            },
            Verdict::Skip { burial, reason } => {
                tracing::info!(
                    record = %at,
                    origin,
                    error = text(),
                    "error is classified as `Skip`; skipping the record"
                );
                self.skip(id, burial, reason);
            }
            Verdict::Stop { burial, help } => return Err(self.halt(id, burial, help, error)),
        }
        Ok(())
    }

    /// Schedules the next attempt after this time, or after the driver's own backoff. Returns the
    /// delay, or `None` if the partition is draining and the record was dropped.
    pub(super) fn wait(
        &mut self,
        id: QueueId,
        after: Option<Duration>,
        settled: Option<Settled>,
    ) -> Option<Duration> {
        if self.partition(id).draining {
            self.leave(id);
            return None;
        }
        let head = &mut self.queue(id).head;
        let after = after.unwrap_or_else(|| {
            head.backoffs = head.backoffs.saturating_add(1);
            Backoff::default().delay(head.backoffs)
        });
        head.waited_for.clone_from(&settled);
        let timer = self.timers.start(id, after, settled);
        self.queue(id).state = State::Waiting(timer);
        Some(after)
    }

    /// Notes that the store answered this record.
    pub(super) fn answered(&mut self, id: QueueId) {
        self.breaker.answered(id);
        // The part of the store that was unavailable to this record may now be available to others.
        if self.breaker.take_recovered() || self.queue(id).head.unanswered > 0 {
            self.list_unanswered();
        }
    }

    /// Requeues the queues that wait for the store.
    pub(super) fn list_unanswered(&mut self) {
        for id in std::mem::take(&mut self.unanswered) {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.head.unanswered = 0;
                if let State::Waiting(_) = queue.state {
                    self.list(id);
                }
            }
        }
    }

    /// Schedules the next attempt of a record that the store did not answer.
    fn wait_for_store(&mut self, id: QueueId) {
        let head = &mut self.queue(id).head;
        head.unanswered = head.unanswered.saturating_add(1);
        let times = head.unanswered;
        if times == 1 {
            self.unanswered.push(id);
        }
        let after = self.breaker.backoff(times);
        self.wait(id, Some(after), None);
    }

    /// Requeues the record. It is retried as soon as the in-flight limit allows.
    fn due_again(&mut self, id: QueueId) {
        if self.partition(id).draining {
            return self.leave(id);
        }
        self.list(id);
    }

    /// Finishes the first record of a queue.
    fn finish(&mut self, id: QueueId, outputs: Vec<Output>) {
        let far = self.far();
        let first = self.queue(id).first();
        let (delivery, amount) = (first.delivery, first.amount());
        let at = (!outputs.is_empty()).then(|| first.record.coordinates().clone());
        let partition = self.partition(id);
        let pending = at.map(|at| partition.pending(at, outputs));
        #[cfg(test)]
        let amount = if is_planted(Bug::BudgetNotReturned) { Amount::default() } else { amount };
        partition.release(amount);
        let near = partition.finish(delivery, pending, far);
        if !partition.retention_seen {
            self.compare_retention(id);
        }
        self.next_of(id);
        self.list_all(near);
    }

    /// Drops the first record of a queue without finishing it.
    fn leave(&mut self, id: QueueId) {
        let amount = self.queue(id).first().amount();
        self.partition(id).release(amount);
        self.left(amount);
        self.next_of(id);
    }

    /// Removes the first record, which was finished or dropped. Requeues the queue, unless a run
    /// already has the next record.
    fn next_of(&mut self, id: QueueId) {
        let queue = self.queue(id);
        if !queue.pop() {
            self.remove(id);
        } else if !queue.is_running() {
            if self.partition(id).draining {
                let amount = self.queue(id).amount();
                self.partition(id).release(amount);
                self.left(amount);
                self.remove(id);
            } else {
                self.list(id);
            }
        }
    }
}
