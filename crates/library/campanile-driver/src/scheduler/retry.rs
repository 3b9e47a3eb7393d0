//! Retries of failed attempts, in place or elsewhere.

use std::time::Duration;

use campanile_core::telemetry::ErrorType;
use campanile_idempotency::{Backoff, SettledFuture};

use crate::epilogue::RetryElsewhere;
use crate::error::origin;
use crate::reports::{QueueId, RunOutcome};
use crate::scheduler::Scheduler;
use crate::scheduler::last_error::WAITS_FOR_BACKOFF;
use crate::scheduler::queue::QueueState;

impl Scheduler {
    /// Handles a failed attempt: retries the record after the time that the idempotency layer has set
    /// in its error, or else after the driver's own backoff, unless it is taken over.
    pub(crate) fn retry(
        &mut self,
        id: QueueId,
        after: Option<Duration>,
        error: &str,
        error_type: ErrorType,
    ) {
        let partition = self.partition(id);
        partition.counters.retried.add(1);
        partition.metrics.retries.of(error_type).increment(1);
        self.queue(id).record_failure(error.to_owned(), WAITS_FOR_BACKOFF);
        let record = self.record(id);
        let from = self.partition(id).delay();
        let elsewhere = match self.partition(id).draining {
            false => self.config.epilogue.retry(&record, from, after),
            true => None,
        };
        let (after, retry_topic) = match elsewhere {
            Some(RetryElsewhere { topic, after, published }) => {
                self.spawn(id, |reporter| async move {
                    reporter.end_run(RunOutcome::Deferred(published.await));
                });
                (Some(after), Some(topic))
            }
            None => (self.schedule_retry(id, after, None), None),
        };
        tracing::warn!(
            record = %record.coordinates(),
            origin = origin(&record),
            error,
            after = after.map(debug),
            retry_topic = retry_topic.as_deref(),
            "attempt failed; retrying"
        );
    }

    /// Schedules the next attempt after this time, or after the driver's own backoff. Returns the
    /// delay, or `None` if the partition is draining and the record was dropped.
    pub(crate) fn schedule_retry(
        &mut self,
        id: QueueId,
        after: Option<Duration>,
        settled: Option<SettledFuture>,
    ) -> Option<Duration> {
        if self.partition(id).draining {
            self.drop_first(id);
            return None;
        }
        let attempts = &mut self.queue(id).attempts;
        let after = after.unwrap_or_else(|| {
            attempts.backoffs = attempts.backoffs.saturating_add(1);
            Backoff::default().delay(attempts.backoffs)
        });
        attempts.waited_for.clone_from(&settled);
        let timer = self.timers.start(id, after, settled);
        self.queue(id).state = QueueState::Waiting(timer);
        Some(after)
    }
}
