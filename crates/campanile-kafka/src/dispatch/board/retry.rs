//! Records that wait in retry topics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Board;
use crate::dispatch::attempt::Ended;
use crate::dispatch::lane::HeadState;
use crate::retry_topics::{Ladder, origin};
use crate::slot::SlotId;
use crate::task::Task;

impl Board {
    /// An attempt has failed. Again after this time, or after a back-off of the driver's.
    pub(super) fn retry(&mut self, slot: SlotId, after: Option<Duration>, error: &str) {
        self.summary.retried += 1;
        let record = self.record(slot);
        let (after, retry_topic) = match self.policies.ladder.clone() {
            Some(ladder) if !self.lane(slot).is_draining() => {
                let to = ladder.next(after, self.lane(slot).rung()).clone();
                self.defer(slot, ladder, to.topic.clone(), after);
                (Some(to.delay), Some(to.topic))
            }
            _ => (self.wait(slot, after, None), None),
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
        slot: SlotId,
        ladder: Arc<Ladder>,
        topic: Arc<str>,
        after: Option<Duration>,
    ) {
        let report = self.report(slot);
        let record = self.record(slot);
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
        self.at_work(slot, task);
    }

    /// The next record of this lane is a copy whose delay is over in so long.
    pub(super) fn wait_for_its_time(&mut self, slot: SlotId, left: Duration) {
        let id = self.waits.start(slot, left, None);
        let lane = self.lane(slot);
        lane.listed = false;
        lane.due().state = HeadState::Waiting(id);
    }
}
