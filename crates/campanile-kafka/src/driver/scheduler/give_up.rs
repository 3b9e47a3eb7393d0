//! What follows when a record is given up.

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

/// How often a key whose dead letter is published no more is tried, in case an operator has reopened it.
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

    /// Publishes the record's dead letter, unless that would be one too many. While the consumer is
    /// paused it publishes none: what fails is being fixed, and the record is tried by that.
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

    /// The record's dead letter is not published, or that is not recorded.
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
                // Once at ERROR, so that an operator looks; then only that it is still so.
                if std::mem::replace(&mut self.queue(id).head.logged, true) {
                    tracing::warn!(record = %at, origin, topic, error, "still not published");
                } else {
                    tracing::error!(
                        record = %at,
                        origin,
                        topic,
                        error,
                        "the dead letter is not published, so its partition waits: {help}"
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
                    "every burial was interrupted, so its partition stands still: find out what \
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
            "paused, since too many of the last records became dead letters: fix what fails them all, \
             then resume by the handle, or restart"
        );
    }

    /// Stops the consumer at this record, whose lock is released first.
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
                tracing::warn!(
                    error = chain(&error),
                    "failed to release a lock; it expires by itself"
                );
            }
            record.let_go().await;
            reporter.ended(outcome);
        });
    }
}
