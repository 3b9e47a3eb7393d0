//! Outcomes: what follows when the work on a record has ended.

use campanile_core::BoxError;
use campanile_core::telemetry::ErrorType;
use tracing::field::debug;

use crate::epilogue::{GiveUpAction, GiveUpLock};
use crate::error::{ConsumerError, chain, error_type, origin};
use crate::reports::{QueueId, RunOutcome};
use crate::scheduler::Scheduler;
use crate::scheduler::last_error::{WAITS_FOR_DEPENDENCY, WAITS_FOR_STORE, waits_for};
use crate::scheduler::outage::{Ended, MAX_PAUSE};
use crate::scheduler::queue::QueueState;
use crate::scheduler::verdict::{Verdict, has_passed, store_answered, verdict_for};
use crate::source::Item;
use crate::summary::{Count, SummaryCounters};

impl Scheduler {
    /// Handles the end of a queue's run. `outcome` is the outcome of its first record.
    ///
    /// A late report about a removed queue is ignored: it finishes nothing and commits nothing.
    ///
    /// # Errors
    /// Fails if the outcome stops the consumer.
    pub(crate) fn on_run_ended(
        &mut self,
        id: QueueId,
        outcome: RunOutcome,
    ) -> Result<(), ConsumerError> {
        let Some(queue) = self.queues.get_mut(id) else {
            return Ok(());
        };
        queue.attempts.waited_for = None;
        if let RunOutcome::Processed { item } = outcome {
            self.on_processed(id, item, true);
            return Ok(());
        }
        self.clear_in_flight(id);
        match outcome {
            RunOutcome::Processed { .. } => unreachable!("returned above"),
            RunOutcome::Skipped => {
                self.flood_counter.record_finished(false);
                self.finish(id, None, |counters| &counters.skipped);
            }
            RunOutcome::GivenUp(Ok(()), _permit, error_type) => {
                self.partition(id).metrics.dead_letters.of(error_type).increment(1);
                self.flood_counter.record_finished(true);
                self.finish(id, None, |counters| &counters.dead_lettered);
            }
            // The record comes back, so the flood limit counts it neither as given up nor as a record
            // that was finished otherwise.
            RunOutcome::Deferred(Ok(())) => {
                self.finish(id, None, |counters| &counters.deferred);
            }
            RunOutcome::GivenUp(Err(why), ..) | RunOutcome::Deferred(Err(why)) => {
                return self.on_unfinished(id, why);
            }
            RunOutcome::PausedAt => self.requeue(id),
            RunOutcome::StoppedAt => self.drop_first(id),
            RunOutcome::Panicked(text) => {
                self.breaker.on_no_store_call(id);
                self.outages.on_inconclusive(id);
                self.retry(id, None, &format!("panicked: {text}"), ErrorType::Panicked);
            }
            RunOutcome::ServiceFailed(error) => {
                self.breaker.on_no_store_call(id);
                self.outages.on_inconclusive(id);
                self.requeue(id);
                return Err(ConsumerError::Service(error));
            }
            RunOutcome::Failed(error) => return self.on_error(id, error),
            RunOutcome::InvalidResponse(error) => {
                self.on_store_answer(id);
                let help = "what its response is to commit is unknown, and committing its offset would lose that";
                return Err(self.stop_at(id, GiveUpLock::None, help, error));
            }
        }
        Ok(())
    }

    /// Handles a processed first record. `ended` is set if the run has ended with this record.
    pub(crate) fn on_processed(&mut self, id: QueueId, item: Option<Item>, ended: bool) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        queue.attempts.waited_for = None;
        queue.running -= 1;
        if ended {
            self.clear_in_flight(id);
        }
        self.on_store_answer(id);
        let is_duplicate = self.queue(id).first().record.attempt().is_duplicate();
        self.on_attempt_ended(id, !is_duplicate);
        self.flood_counter.record_finished(false);
        self.finish(id, item, |counters| &counters.processed);
    }

    /// Handles a run that was stopped before its next record.
    pub(crate) fn on_run_stopped(&mut self, id: QueueId) {
        if self.queues.get_mut(id).is_some() {
            self.breaker.on_no_store_call(id);
            self.outages.on_inconclusive(id);
            self.clear_in_flight(id);
            self.requeue(id);
        }
    }

    /// Handles an error of the service.
    ///
    /// # Errors
    /// Fails if the error stops the consumer.
    pub(crate) fn on_error(&mut self, id: QueueId, error: BoxError) -> Result<(), ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        let text = || chain(&*error);
        let verdict = match verdict_for(&error, &self.config.classifiers) {
            Verdict::Unavailable { .. } if record.attempt().is_unavailable_denied() => {
                Verdict::Retry { after: None }
            }
            verdict => verdict,
        };
        if !matches!(verdict, Verdict::StoreUnavailable) {
            match store_answered(&error) {
                true => self.on_store_answer(id),
                false => self.breaker.on_no_store_call(id),
            }
        }
        if !matches!(verdict, Verdict::Unavailable { .. }) {
            self.on_attempt_ended(id, has_passed(&error, &verdict));
        }
        match verdict {
            Verdict::Unavailable { dependency } => {
                self.count_inconclusive(id, error_type(&*error));
                self.queue(id).record_failure(text(), WAITS_FOR_DEPENDENCY);
                self.wait_for_dependency(id, dependency, &text());
            }
            Verdict::Retry { after } => self.retry(id, after, &text(), error_type(&*error)),
            Verdict::Wait { after, settled } => {
                self.count_inconclusive(id, error_type(&*error));
                self.queue(id).record_failure(text(), waits_for(&*error));
                let after = self.schedule_retry(id, after, settled).map(debug);
                tracing::debug!(
                    record = %at,
                    origin,
                    error = text(),
                    after,
                    "record cannot be processed yet; waiting"
                );
            }
            Verdict::StoreUnavailable => {
                self.count_inconclusive(id, error_type(&*error));
                self.queue(id).record_failure(text(), WAITS_FOR_STORE);
                self.breaker.on_store_failure(id, &text());
                self.schedule_store_retry(id);
            }
            Verdict::GiveUp { giving_up, reason, help } => match &self.config.give_up {
                GiveUpAction::Skip => {
                    tracing::warn!(
                        record = %at,
                        origin,
                        error = text(),
                        "record given up; skipping it"
                    );
                    self.skip(id, giving_up, reason);
                }
                GiveUpAction::HandOver => self.hand_over(id, giving_up, &*error, reason),
                GiveUpAction::Stop => return Err(self.stop_at(id, giving_up, help, error)),
                GiveUpAction::StopPartition => self.stop_partition_at(id, giving_up, help, &*error),
            },
            Verdict::Skip { giving_up, reason } => {
                tracing::info!(
                    record = %at,
                    origin,
                    error = text(),
                    "error is classified as `Skip`; skipping the record"
                );
                self.skip(id, giving_up, reason);
            }
            Verdict::Stop { giving_up, help } => {
                return Err(self.stop_at(id, giving_up, help, error));
            }
        }
        Ok(())
    }

    /// Notes whether the handler of a record has got further than what it depends on.
    fn on_attempt_ended(&mut self, id: QueueId, passed: bool) {
        if self.outages.is_empty() {
            return;
        }
        if !passed {
            return self.outages.on_inconclusive(id);
        }
        let record = self.record(id);
        let route = self.router.route_of(&record);
        let witness = self.queues.get_mut(id).and_then(|queue| queue.attempts.witness.as_deref());
        for Ended { route, witnesses, by_others } in self.outages.on_passed(id, route, witness) {
            for id in witnesses {
                if !self.queues.is_waiting_for_dependency(id) {
                    continue;
                }
                match &mut self.queue(id).attempts.witness {
                    Some(witness) if by_others => {
                        witness.outlive();
                        self.schedule_retry(id, Some(MAX_PAUSE), None);
                    }
                    _ => self.enqueue(id),
                }
            }
            self.run_queue.unpark(route);
        }
    }

    /// Lets a record wait for what its handler depends on.
    fn wait_for_dependency(&mut self, id: QueueId, dependency: Option<&'static str>, error: &str) {
        if self.partition(id).draining {
            self.outages.on_inconclusive(id);
            return self.drop_first(id);
        }
        let record = self.record(id);
        let route = self.router.route_of(&record);
        let before = self.queue(id).attempts.witness.take();
        let witness = self.outages.on_failure(id, route, dependency, before, error);
        if witness.is_denied() {
            record.attempt().deny_unavailable();
            tracing::warn!(
                record = %record.coordinates(),
                origin = origin(&record),
                dependency,
                error,
                "a record fails as if a dependency were unavailable, while others are processed; from now on, \
                 its attempts count"
            );
        }
        let queue = self.queue(id);
        queue.attempts.witness = Some(witness);
        queue.state = QueueState::WaitingForDependency;
    }

    /// Counts an attempt that said nothing about its record.
    fn count_inconclusive(&mut self, id: QueueId, error_type: ErrorType) {
        let partition = self.partition(id);
        partition.counters.inconclusive.add(1);
        partition.metrics.retries.of(error_type).increment(1);
    }

    /// Notes that the store answered this record.
    pub(crate) fn on_store_answer(&mut self, id: QueueId) {
        self.breaker.on_store_answer(id);
        // The part of the store that was unavailable to this record may now be available to others.
        if self.breaker.take_recovered() || self.queue(id).attempts.store_failures > 0 {
            self.requeue_waiting_for_store();
        }
    }

    /// Requeues the queues that wait for the store.
    pub(crate) fn requeue_waiting_for_store(&mut self) {
        for id in std::mem::take(&mut self.waiting_for_store) {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.attempts.store_failures = 0;
                if let QueueState::Waiting(_) = queue.state {
                    self.enqueue(id);
                }
            }
        }
    }

    /// Schedules the next attempt of a record that the store did not answer.
    fn schedule_store_retry(&mut self, id: QueueId) {
        let attempts = &mut self.queue(id).attempts;
        attempts.store_failures = attempts.store_failures.saturating_add(1);
        let times = attempts.store_failures;
        if times == 1 {
            self.waiting_for_store.push(id);
        }
        let after = self.breaker.backoff(times);
        self.schedule_retry(id, Some(after), None);
    }

    /// Requeues the record. It is retried as soon as the in-flight limit allows.
    fn requeue(&mut self, id: QueueId) {
        if self.partition(id).draining {
            return self.drop_first(id);
        }
        self.enqueue(id);
    }

    /// Finishes the first record of a queue, and counts it in `count`.
    fn finish(&mut self, id: QueueId, item: Option<Item>, count: fn(&SummaryCounters) -> &Count) {
        let max_ahead = self.max_ahead();
        let first = self.queue(id).first();
        let (delivery, amount) = (first.delivery, first.amount());
        let offset = first.record.offset();
        let partition = self.partition(id);
        count(&partition.counters).add(1);
        partition.release(amount);
        let unblocked = partition.finish(delivery, (offset, item), max_ahead);
        self.advance(id);
        self.enqueue_all(unblocked);
    }

    /// Drops the first record of a queue without finishing it.
    pub(crate) fn drop_first(&mut self, id: QueueId) {
        let (amount, stopping) = (self.queue(id).first().amount(), self.stopping);
        self.partition(id).drop_records(amount, stopping);
        self.advance(id);
    }

    /// Removes the first record, which was finished or dropped. Requeues the queue, unless a run
    /// already has the next record.
    fn advance(&mut self, id: QueueId) {
        let queue = self.queue(id);
        if !queue.pop() {
            self.remove(id);
        } else if !queue.is_running() {
            if self.partition(id).draining {
                let (amount, stopping) = (self.queue(id).amount(), self.stopping);
                self.partition(id).drop_records(amount, stopping);
                self.remove(id);
            } else {
                self.enqueue(id);
            }
        }
    }
}
