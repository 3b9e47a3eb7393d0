//! Records that are given up: skips the record, publishes its dead letter, or stops the consumer or
//! the partition.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_core::telemetry::ErrorType;
use campanile_idempotency::IdempotencyError;

use super::Scheduler;
use super::last_error::WAITS_FOR_DEAD_LETTER;
use super::queue::QueueId;
use crate::dead_letter::{Cause, DeadLetters, GiveUpError, GivenUpRecord};
use crate::driver::assignment::Assignment;
use crate::driver::attempt::RecordOutcome;
use crate::error::{ConsumerError, chain, log_stop, origin};
use crate::flood_limit::LimitExceeded;
use crate::give_up::{GiveUpLock, give_up, release_for_pause, settle_for_stop};
use crate::handle::Paused;

/// The retry interval of a record after too many interrupted give-ups. An operator may have reopened
/// its key in the meantime.
const STUCK_RETRY_INTERVAL: Duration = Duration::from_secs(5 * 60);

impl Scheduler {
    pub(super) fn skip(&mut self, id: QueueId, giving_up: GiveUpLock, reason: String) {
        self.spawn(id, |reporter| async move {
            reporter.end_run(match give_up(giving_up, reason).await {
                Ok(()) => RecordOutcome::Skipped,
                Err(error) => RecordOutcome::Failed(error.into()),
            });
        });
    }

    /// Publishes the record's dead letter, unless the flood limit is reached. Nothing is
    /// published while the consumer is paused: the cause of the failures is being fixed, and the
    /// record is retried after the resume.
    pub(super) fn publish_dead_letter(
        &mut self,
        id: QueueId,
        letters: Arc<DeadLetters>,
        giving_up: GiveUpLock,
        (cause, error_type): (Cause, ErrorType),
        reason: String,
    ) {
        let dead = GivenUpRecord { record: self.record(id), cause, reason };
        if self.control.is_paused() {
            return self.release_lock(id, release_for_pause(giving_up), RecordOutcome::PausedAt);
        }
        let permit = match self.flood_counter.admit() {
            Ok(permit) => permit,
            Err(exceeded) => {
                self.pause_for_flood(id, exceeded, &dead.reason);
                return self.release_lock(
                    id,
                    release_for_pause(giving_up),
                    RecordOutcome::PausedAt,
                );
            }
        };
        self.spawn(id, |reporter| async move {
            reporter.end_run(match letters.give_up(dead, giving_up).await {
                Ok(()) => RecordOutcome::DeadLettered(permit, error_type),
                Err(why) => {
                    drop(permit);
                    RecordOutcome::DeadLetterFailed(why)
                }
            });
        });
    }

    /// Handles a failure to publish a dead letter, or to update the entry of its key.
    pub(super) fn on_dead_letter_failed(
        &mut self,
        id: QueueId,
        why: GiveUpError,
    ) -> Result<(), ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        match why {
            GiveUpError::Unsettled(error) => return self.on_error(id, error),
            GiveUpError::Unpublished { topic, error, help } => {
                let topic = topic.as_deref();
                // The first failure is logged at ERROR, to alert an operator; repeated failures are
                // logged at WARN.
                if std::mem::replace(&mut self.queue(id).attempts.logged, true) {
                    tracing::warn!(
                        record = %at,
                        origin,
                        topic,
                        error,
                        "failed to publish the dead letter again; retrying"
                    );
                } else {
                    tracing::error!(
                        record = %at,
                        origin,
                        topic,
                        error,
                        "failed to publish the dead letter; retrying while its partition waits: \
                         {help}"
                    );
                }
                self.queue(id).record_failure(error, WAITS_FOR_DEAD_LETTER);
                self.schedule_retry(id, None, None);
            }
            GiveUpError::Stuck { give_ups } => {
                self.queue(id).record_failure(
                    "every give-up was interrupted".to_owned(),
                    WAITS_FOR_DEAD_LETTER,
                );
                tracing::error!(
                    record = %at,
                    origin,
                    give_ups,
                    "every give-up was interrupted, and the partition is stalled: find out what \
                     ends the process while the dead letter is published, then reopen the key"
                );
                self.schedule_retry(id, Some(STUCK_RETRY_INTERVAL), None);
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
    pub(super) fn stop_at(
        &mut self,
        id: QueueId,
        giving_up: GiveUpLock,
        help: &'static str,
        error: BoxError,
    ) -> ConsumerError {
        let record = self.record(id);
        let (at, lock) = (record.coordinates(), giving_up.lock_handle());
        log_stop("consumer", at, record.origin(), lock, help, &*error);
        self.release_lock(id, settle_for_stop(giving_up), RecordOutcome::StoppedAt);
        ConsumerError::stopped(at, help, error)
    }

    /// Stops the partition at this record. As in a drain, records in flight may finish, and all others
    /// are dropped. The partition's watermark cannot pass this record, which is never finished.
    pub(super) fn stop_partition_at(
        &mut self,
        id: QueueId,
        giving_up: GiveUpLock,
        help: &'static str,
        error: &(dyn Error + 'static),
    ) {
        let record = self.record(id);
        let (at, lock) = (record.coordinates(), giving_up.lock_handle());
        log_stop("partition", at, record.origin(), lock, help, error);
        self.release_lock(id, settle_for_stop(giving_up), RecordOutcome::StoppedAt);
        let delivery = self.queue(id).first().delivery;
        let partition = self.partition(id);
        partition.stop_at(delivery);
        partition.assignment.stop_at(at.offset);
        // The partition may be draining already, because of a revoke or another record.
        if !std::mem::replace(&mut partition.draining, true) {
            let assignment = partition.assignment.clone();
            self.stopped_partitions.push(assignment);
            self.on_drain_started();
        }
    }

    /// Takes the partitions that were stopped since the last call. They need not be read any more.
    pub(in crate::driver) fn take_stopped_partitions(&mut self) -> Vec<Arc<Assignment>> {
        std::mem::take(&mut self.stopped_partitions)
    }

    fn release_lock(
        &mut self,
        id: QueueId,
        settled: impl Future<Output = Result<(), IdempotencyError>> + Send + 'static,
        outcome: RecordOutcome,
    ) {
        let record = self.record(id);
        self.spawn(id, |reporter| async move {
            if let Err(error) = settled.await {
                tracing::warn!(error = chain(&error), "failed to release a lock; it will expire");
            }
            record.lock_released().await;
            reporter.end_run(outcome);
        });
    }
}
