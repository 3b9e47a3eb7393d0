//! Releases revoked partitions only once no commit of theirs is in flight.
//!
//! librdkafka sends a commit that finds no coordinator when there is one again, and then with the generation of
//! that time. If the partitions had a new owner by then, the commit would lower the offsets that this owner has
//! committed.

use std::time::Duration;

use campanile_core::Clock;
use rdkafka::TopicPartitionList;

/// How long released partitions may wait for the commit in flight. librdkafka sends a commit that has found no
/// coordinator for as long as a session lasts, by default 45 s.
const COMMIT_END_TIMEOUT: Duration = Duration::from_secs(60);

/// Partitions that are released as soon as no commit of theirs is in flight.
#[derive(Default)]
pub(crate) struct Release(Option<(TopicPartitionList, Duration)>);

impl Release {
    pub(crate) fn start(&mut self, partitions: TopicPartitionList, clock: &Clock) {
        self.0 = Some((partitions, clock.now() + COMMIT_END_TIMEOUT));
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the partitions to release now. `is_committing` says whether a commit of theirs is in flight.
    pub(crate) fn poll(
        &mut self,
        clock: &Clock,
        is_committing: impl FnOnce() -> bool,
    ) -> Option<TopicPartitionList> {
        let (_, deadline) = self.0.as_ref()?;
        if is_committing() {
            if clock.now() < *deadline {
                return None;
            }
            tracing::warn!("releasing partitions with an offset commit that was not answered");
        }
        self.end()
    }

    /// Returns the partitions to release, without waiting.
    pub(crate) fn end(&mut self) -> Option<TopicPartitionList> {
        self.0.take().map(|(partitions, _)| partitions)
    }
}
