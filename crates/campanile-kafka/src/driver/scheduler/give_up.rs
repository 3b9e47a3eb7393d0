//! Records that are given up: skips the record, publishes its dead letter, or stops the consumer.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::IdempotencyError;

use super::Scheduler;
use super::queue::QueueId;
use super::trouble::LETTER;
use crate::dead_letter::{Cause, Dead, DeadLetters, Unburied};
use crate::driver::attempt::Outcome;
use crate::error::{ConsumerError, chain};
use crate::flood::Flooded;
use crate::given_up::{Burial, hold, leave, skip};
use crate::handle::Paused;
use crate::retry_topics::origin;

/// The retry interval of a record after too many interrupted burials. An operator may have reopened
/// its key in the meantime.
const REOPENED: Duration = Duration::from_secs(5 * 60);

impl Scheduler {
    pub(super) fn skip(&mut self, id: QueueId, burial: Burial, reason: String) {
        self.spawn(id, |reporter| async move {
            reporter.ended(match skip(burial, reason).await {
                Ok(()) => Outcome::Skipped,
                Err(error) => Outcome::Failed(error.into()),
            });
        });
    }

    /// Publishes the record's dead letter, unless the flood guard's limit is reached. Nothing is
    /// published while the consumer is paused: the cause of the failures is being fixed, and the
    /// record is retried after the resume.
    pub(super) fn dead_letter(
        &mut self,
        id: QueueId,
        letters: Arc<DeadLetters>,
        burial: Burial,
        cause: Cause,
        reason: String,
    ) {
        let dead = Dead { record: self.record(id), cause, reason };
        if self.switch.is_paused() {
            return self.release_lock(id, hold(burial), Outcome::Held);
        }
        let passage = match self.flood.admit() {
            Ok(passage) => passage,
            Err(flooded) => {
                self.pause_for_flood(id, flooded, &dead.reason);
                return self.release_lock(id, hold(burial), Outcome::Held);
            }
        };
        self.spawn(id, |reporter| async move {
            reporter.ended(match letters.bury(dead, burial).await {
                Ok(()) => Outcome::DeadLettered(passage),
                Err(why) => {
                    drop(passage);
                    Outcome::NotDeadLettered(why)
                }
            });
        });
    }

    /// Handles a failure to publish a dead letter, or to update the entry of its key.
    pub(super) fn not_dead_lettered(
        &mut self,
        id: QueueId,
        why: Unburied,
    ) -> Result<(), ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        match why {
            Unburied::Unsettled(error) => return self.failed(id, error),
            Unburied::Unpublished { topic, error, help } => {
                let topic = topic.as_deref();
                // The first failure is logged at ERROR, to alert an operator; repeated failures are
                // logged at WARN.
                if std::mem::replace(&mut self.queue(id).head.logged, true) {
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
                self.queue(id).meets(error, LETTER);
                self.wait(id, None, None);
            }
            Unburied::Stuck { burials } => {
                self.queue(id).meets("every burial was interrupted".to_owned(), LETTER);
                tracing::error!(
                    record = %at,
                    origin,
                    burials,
                    "every burial was interrupted, and the partition is stalled: find out what \
                     ends the process while the dead letter is published, then reopen the key"
                );
                self.wait(id, Some(REOPENED), None);
            }
        }
        Ok(())
    }

    fn pause_for_flood(&mut self, id: QueueId, flooded: Flooded, error: &str) {
        let Flooded { most, of_last } = flooded;
        self.switch.pause_for_flood(Paused::Flood { most, of_last });
        let record = self.record(id);
        tracing::error!(
            record = %record.coordinates(),
            origin = origin(&record),
            error,
            most,
            of_last,
            "consumer paused: too many of the last records became dead letters; fix the cause, \
             then resume through the handle, or restart"
        );
    }

    /// Stops the consumer at this record. The record's lock is released before serving ends.
    pub(super) fn halt(
        &mut self,
        id: QueueId,
        burial: Burial,
        help: &'static str,
        error: BoxError,
    ) -> ConsumerError {
        self.release_lock(id, leave(burial), Outcome::Left);
        ConsumerError::stopped(self.record(id).coordinates(), help, error)
    }

    fn release_lock(
        &mut self,
        id: QueueId,
        settled: impl Future<Output = Result<(), IdempotencyError>> + Send + 'static,
        outcome: Outcome,
    ) {
        let record = self.record(id);
        self.spawn(id, |reporter| async move {
            if let Err(error) = settled.await {
                tracing::warn!(error = chain(&error), "failed to release a lock; it will expire");
            }
            record.let_go().await;
            reporter.ended(outcome);
        });
    }
}
