//! What follows when a record is given up.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::IdempotencyError;

use super::Board;
use crate::dead_letter::{Cause, Dead, DeadLetters, Unburied};
use crate::dispatch::attempt::Ended;
use crate::dispatch::strand::{State, StrandId};
use crate::dispatch::trouble::LETTER;
use crate::error::{ConsumerError, chain};
use crate::flood::Flooded;
use crate::given_up::{Burial, hold, leave, skip};
use crate::handle::Paused;
use crate::retry_topics::origin;
use crate::task::Task;

/// How often it is looked whether an operator has reopened a key that is not buried any more.
const LOOK: Duration = Duration::from_secs(5 * 60);

impl Board {
    pub(super) fn skip(&mut self, id: StrandId, burial: Burial, reason: String) {
        let report = self.report(id);
        let task = Task::spawn(async move {
            report.send(match skip(burial, reason).await {
                Ok(()) => Ended::Skipped,
                Err(error) => Ended::Failed(error.into()),
            });
        });
        self.at_work(id, State::Running(task));
    }

    /// Publishes the record's dead letter, unless that would be one too many. While the consumer is
    /// paused it publishes none: somebody mends what fails, and the record is tried by that.
    pub(super) fn bury(
        &mut self,
        id: StrandId,
        letters: Arc<DeadLetters>,
        burial: Burial,
        cause: Cause,
        reason: String,
    ) {
        let dead = Dead { record: self.record(id), cause, reason };
        if !self.gate.is_open() {
            return self.let_go(id, hold(burial), Ended::Held);
        }
        let passage = match self.flood.admit() {
            Ok(passage) => passage,
            Err(flooded) => {
                self.flooded(id, flooded, &dead.reason);
                return self.let_go(id, hold(burial), Ended::Held);
            }
        };
        let report = self.report(id);
        let task = Task::spawn(async move {
            report.send(match letters.bury(dead, burial).await {
                Ok(()) => Ended::Buried(passage),
                Err(why) => {
                    drop(passage);
                    Ended::Unburied(why)
                }
            });
        });
        self.at_work(id, State::Running(task));
    }

    /// The record's dead letter is not published, or that is not recorded.
    pub(super) fn unburied(&mut self, id: StrandId, why: Unburied) -> Option<ConsumerError> {
        let record = self.record(id);
        let (at, origin) = (record.coordinates(), origin(&record));
        match why {
            Unburied::Unsettled(error) => return self.failed(id, error),
            Unburied::Unpublished { topic, error, help } => {
                let topic = topic.as_deref();
                // Once for somebody to come; then only that it is still so.
                if std::mem::replace(&mut self.head(id).told, true) {
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
                self.head(id).meets(error, LETTER);
                self.wait(id, None, None);
            }
            Unburied::Stuck { burials } => {
                self.head(id).meets("every burial was interrupted".to_owned(), LETTER);
                tracing::error!(
                    record = %at,
                    origin,
                    burials,
                    "every burial was interrupted, so its partition stands still: find out what \
                     ends the process while the dead letter is published, then reopen the key"
                );
                self.wait(id, Some(LOOK), None);
            }
        }
        None
    }

    fn flooded(&mut self, id: StrandId, Flooded { most, of_last }: Flooded, error: &str) {
        self.gate.flooded(Paused::Flood { most, of_last });
        let record = self.record(id);
        tracing::error!(
            record = %record.coordinates(),
            origin = origin(&record),
            error,
            most,
            of_last,
            "paused, since too much of what is finished became dead letters: mend what fails them \
             all, then resume by the handle, or start again"
        );
    }

    /// The consumer stops at this record, whose lock is let go first.
    pub(super) fn halt(
        &mut self,
        id: StrandId,
        burial: Burial,
        help: &'static str,
        error: BoxError,
    ) -> ConsumerError {
        self.let_go(id, leave(burial), Ended::Left);
        ConsumerError::stopped(self.record(id).coordinates(), help, error)
    }

    /// Lets the lock go.
    fn let_go(
        &mut self,
        id: StrandId,
        settled: impl Future<Output = Result<(), IdempotencyError>> + Send + 'static,
        ended: Ended,
    ) {
        let report = self.report(id);
        let record = self.record(id);
        let task = Task::spawn(async move {
            if let Err(error) = settled.await {
                tracing::warn!(error = chain(&error), "the lock expires by itself");
            }
            record.let_go().await;
            report.send(ended);
        });
        self.at_work(id, State::Running(task));
    }
}
