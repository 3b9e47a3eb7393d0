//! Retries of failed attempts, in place or through a retry topic.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::telemetry::ErrorType;
use campanile_idempotency::{Backoff, SettledFuture};
use tokio::time::Instant;

use super::Scheduler;
use super::last_error::WAITS_FOR_BACKOFF;
use super::queue::{QueueId, QueueState};
use crate::driver::attempt::RecordOutcome;
use crate::error::origin;
use crate::retry_topics::RetryPublisher;

impl Scheduler {
    /// Handles a failed attempt: retries the record after this time, or after the driver's own
    /// backoff. With retry topics, a copy of the record is published instead.
    pub(super) fn retry(
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
        let (after, retry_topic) = match self.policies.retry_publisher.clone() {
            Some(retry_publisher) if !self.partition(id).draining => {
                let to = retry_publisher.next_topic(after, self.partition(id).delay()).clone();
                self.defer(id, retry_publisher, to.topic.clone(), after);
                (Some(to.delay.time), Some(to.topic))
            }
            _ => (self.schedule_retry(id, after, None), None),
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

    /// Publishes a copy of the record to a retry topic, so that other records do not wait for this
    /// one. If the publication fails, the record is retried in place after this time, or after the
    /// driver's own backoff.
    fn defer(
        &mut self,
        id: QueueId,
        retry_publisher: Arc<RetryPublisher>,
        topic: Arc<str>,
        after: Option<Duration>,
    ) {
        let record = self.record(id);
        let start = Instant::now();
        self.spawn(id, |reporter| async move {
            reporter.end_run(match retry_publisher.publish(&record, &topic).await {
                Ok(()) => RecordOutcome::Deferred,
                Err(error) => {
                    tracing::warn!(
                        record = %record.coordinates(),
                        origin = origin(&record),
                        retry_topic = &*topic,
                        %error,
                        "failed to publish to the retry topic; retrying in place"
                    );
                    RecordOutcome::DeferFailed(
                        after.map(|after| after.saturating_sub(start.elapsed())),
                    )
                }
            });
        });
    }

    /// Schedules the next attempt after this time, or after the driver's own backoff. Returns the
    /// delay, or `None` if the partition is draining and the record was dropped.
    pub(super) fn schedule_retry(
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
