//! Records that wait in retry topics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Board;
use crate::dispatch::attempt::Ended;
use crate::dispatch::strand::{State, StrandId};
use crate::dispatch::trouble::BACK_OFF;
use crate::retry_topics::{Ladder, origin};
use crate::task::Task;

impl Board {
    /// An attempt has failed. Again after this time, or after a back-off of the driver's.
    pub(super) fn retry(&mut self, id: StrandId, after: Option<Duration>, error: &str) {
        self.summary.retried += 1;
        self.head(id).meets(error.to_owned(), BACK_OFF);
        let record = self.record(id);
        let (after, retry_topic) = match self.policies.ladder.clone() {
            Some(ladder) if !self.lane(id).draining => {
                let to = ladder.next(after, self.lane(id).rung()).clone();
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
            "failed, to be tried again"
        );
    }

    /// Publishes a copy, so that the others need not wait for this record. What has no copy is tried
    /// again after this time, or after a back-off of the driver's.
    fn defer(
        &mut self,
        id: StrandId,
        ladder: Arc<Ladder>,
        topic: Arc<str>,
        after: Option<Duration>,
    ) {
        let report = self.report(id);
        let record = self.record(id);
        let start = Instant::now();
        let task = Task::spawn(async move {
            report.send(match ladder.publish(&record, &topic).await {
                Ok(()) => Ended::Deferred,
                Err(error) => {
                    tracing::warn!(
                        record = %record.coordinates(),
                        origin = origin(&record),
                        retry_topic = &*topic,
                        %error,
                        "not published to its retry topic, so it is tried again where it stands"
                    );
                    Ended::NotDeferred(after.map(|after| after.saturating_sub(start.elapsed())))
                }
            });
        });
        self.at_work(id, State::Running(task));
    }
}
