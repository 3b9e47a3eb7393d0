//! Retries of failed attempts, in place or through a retry topic.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Scheduler;
use super::queue::QueueId;
use super::trouble::BACKOFF;
use crate::driver::attempt::Outcome;
use crate::retry_topics::{Ladder, origin};

impl Scheduler {
    /// Handles a failed attempt: retries the record after this time, or after the driver's own
    /// backoff. With retry topics, a copy of the record is published instead.
    pub(super) fn retry(&mut self, id: QueueId, after: Option<Duration>, error: &str) {
        self.summary.retried += 1;
        self.queue(id).meets(error.to_owned(), BACKOFF);
        let record = self.record(id);
        let (after, retry_topic) = match self.policies.ladder.clone() {
            Some(ladder) if !self.partition(id).draining => {
                let to = ladder.next(after, self.partition(id).rung()).clone();
                self.defer(id, ladder, to.topic.clone(), after);
                (Some(to.delay), Some(to.topic))
            }
            _ => (self.wait(id, after, None), None),
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
        ladder: Arc<Ladder>,
        topic: Arc<str>,
        after: Option<Duration>,
    ) {
        let record = self.record(id);
        let start = Instant::now();
        self.spawn(id, |reporter| async move {
            reporter.ended(match ladder.publish(&record, &topic).await {
                Ok(()) => Outcome::Deferred,
                Err(error) => {
                    tracing::warn!(
                        record = %record.coordinates(),
                        origin = origin(&record),
                        retry_topic = &*topic,
                        %error,
                        "failed to publish to the retry topic; retrying in place"
                    );
                    Outcome::NotDeferred(after.map(|after| after.saturating_sub(start.elapsed())))
                }
            });
        });
    }
}
