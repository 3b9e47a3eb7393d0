//! Records that are given up: skips the record, hands it over, or stops the consumer or the partition.

use std::error::Error;
use std::sync::Arc;

use campanile_core::BoxError;
use campanile_idempotency::IdempotencyError;

use crate::epilogue::{
    Failure, GiveUpLock, GivenUp, Unfinished, give_up, release_for_pause, settle_for_stop,
};
use crate::error::{ConsumerError, chain, error_type, log_stop, origin};
use crate::flood_limit::LimitExceeded;
use crate::paused::Paused;
use crate::reports::{QueueId, RunOutcome};
use crate::scheduler::Scheduler;
use crate::source::Assignment;

impl Scheduler {
    pub(crate) fn skip(&mut self, id: QueueId, giving_up: GiveUpLock, reason: String) {
        self.spawn(id, |reporter| async move {
            reporter.end_run(match give_up(giving_up, reason).await {
                Ok(()) => RunOutcome::Skipped,
                Err(error) => RunOutcome::Failed(error.into()),
            });
        });
    }

    /// Hands over the record, unless the flood limit is reached. Nothing is handed over while the
    /// consumer is paused: the cause of the failures is being fixed, and the record is retried after
    /// the resume.
    pub(crate) fn hand_over(
        &mut self,
        id: QueueId,
        lock: GiveUpLock,
        error: &(dyn Error + 'static),
        reason: String,
    ) {
        if self.control.is_paused() {
            return self.release_lock(id, release_for_pause(lock), RunOutcome::PausedAt);
        }
        let permit = match self.flood_counter.admit() {
            Ok(permit) => permit,
            Err(exceeded) => {
                self.pause_for_flood(id, exceeded, &reason);
                return self.release_lock(id, release_for_pause(lock), RunOutcome::PausedAt);
            }
        };
        let (record, error_type) = (self.record(id), error_type(error));
        let is_repeated = self.queue(id).attempts.kept;
        let given_up = GivenUp { record, error, reason, lock, is_repeated };
        let ended = self.config.epilogue.give_up(given_up);
        self.spawn(id, |reporter| async move {
            reporter.end_run(RunOutcome::GivenUp(ended.await, permit, error_type));
        });
    }

    /// Handles a record that was handed over and not finished.
    pub(crate) fn on_unfinished(
        &mut self,
        id: QueueId,
        why: Unfinished,
    ) -> Result<(), ConsumerError> {
        match why {
            Unfinished::Unsettled(error) => return self.on_error(id, error),
            Unfinished::Kept { after, failure } => {
                if let Some(Failure { error, waits_for }) = failure {
                    self.queue(id).attempts.kept = true;
                    self.queue(id).record_failure(error, waits_for);
                }
                self.schedule_retry(id, after, None);
            }
        }
        Ok(())
    }

    fn pause_for_flood(&mut self, id: QueueId, exceeded: LimitExceeded, error: &str) {
        let LimitExceeded { limit, window } = exceeded;
        self.control.pause_for_flood(Paused::Flood { limit, window });
        let record = self.record(id);
        tracing::error!(
            record = %record.coordinates(),
            origin = origin(&record),
            error,
            limit,
            window,
            "consumer paused: too many of the last records became dead letters; fix the cause, \
             then resume through the handle, or restart"
        );
    }

    /// Stops the consumer at this record. The record's lock is released before serving ends.
    pub(crate) fn stop_at(
        &mut self,
        id: QueueId,
        giving_up: GiveUpLock,
        help: &'static str,
        error: BoxError,
    ) -> ConsumerError {
        let record = self.record(id);
        let (at, lock) = (record.coordinates(), giving_up.lock_handle());
        log_stop("consumer", at, record.origin(), lock, help, &*error);
        self.release_lock(id, settle_for_stop(giving_up), RunOutcome::StoppedAt);
        ConsumerError::stopped(at, help, error)
    }

    /// Stops the partition at this record. As in a drain, records in flight may finish, and all others
    /// are dropped. The partition's watermark cannot pass this record, which is never finished.
    pub(crate) fn stop_partition_at(
        &mut self,
        id: QueueId,
        giving_up: GiveUpLock,
        help: &'static str,
        error: &(dyn Error + 'static),
    ) {
        let record = self.record(id);
        let (at, lock) = (record.coordinates(), giving_up.lock_handle());
        log_stop("partition", at, record.origin(), lock, help, error);
        self.release_lock(id, settle_for_stop(giving_up), RunOutcome::StoppedAt);
        let delivery = self.queue(id).first().delivery;
        let partition = self.partition(id);
        partition.stop_at(delivery, at.offset);
        partition.assignment.stop_at(at.offset);
        // The partition may be draining already, because of a revoke or another record.
        if !std::mem::replace(&mut partition.draining, true) {
            let assignment = partition.assignment.clone();
            self.stopped_partitions.push(assignment);
            self.on_drain_started();
        }
    }

    /// Takes the partitions that were stopped since the last call. They need not be read any more.
    pub(crate) fn take_stopped_partitions(&mut self) -> Vec<Arc<Assignment>> {
        std::mem::take(&mut self.stopped_partitions)
    }

    fn release_lock(
        &mut self,
        id: QueueId,
        settled: impl Future<Output = Result<(), IdempotencyError>> + Send + 'static,
        outcome: RunOutcome,
    ) {
        let record = self.record(id);
        self.spawn(id, |reporter| async move {
            if let Err(error) = settled.await {
                tracing::warn!(error = chain(&error), "failed to release a lock; it will expire");
            }
            record.attempt().lock_released().await;
            reporter.end_run(outcome);
        });
    }
}
