//! Records that wait in retry topics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Board;
use crate::dispatch::attempt::Ended;
use crate::dispatch::lane::HeadState;
use crate::retry_topics::Ladder;
use crate::slot::SlotId;
use crate::task::Task;

impl Board {
    /// An attempt has failed. Again after this time, or after a back-off of the driver's.
    pub(super) fn retry(&mut self, slot: SlotId, after: Option<Duration>) {
        self.summary.retried += 1;
        match self.policies.ladder.clone() {
            Some(ladder) if !self.lane(slot).is_draining() => self.defer(slot, ladder, after),
            _ => self.wait(slot, after, None),
        }
    }

    /// Publishes a copy, so that the others need not wait for this record.
    fn defer(&mut self, slot: SlotId, ladder: Arc<Ladder>, after: Option<Duration>) {
        let report = self.report(slot);
        let lane = self.lane(slot);
        let (record, rung) = (lane.head().record.clone(), lane.rung().cloned());
        let start = Instant::now();
        let task = Task::spawn(async move {
            let at = record.coordinates();
            let (topic, published) = ladder.publish(&record, after, rung.as_ref()).await;
            report.send(match published {
                Ok(()) => {
                    tracing::debug!(record = %at, topic = &*topic, "waits in a retry topic");
                    Ended::Deferred
                }
                Err(error) => {
                    tracing::warn!(
                        record = %at,
                        topic = &*topic,
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
