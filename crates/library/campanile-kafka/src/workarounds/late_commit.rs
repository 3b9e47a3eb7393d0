//! Releases revoked partitions only once no commit of theirs is in flight.
//!
//! librdkafka sends a commit that finds no coordinator when there is one again, and then with the generation of
//! that time. If the partitions had a new owner by then, the commit would lower the offsets that this owner has
//! committed.

use std::time::Duration;

use campanile_core::Clock;

/// How long released partitions may wait for the commit in flight. librdkafka sends a commit that has found no
/// coordinator for as long as a session lasts, by default 45 s.
const COMMIT_END_TIMEOUT: Duration = Duration::from_secs(60);

/// Partitions that are released as soon as no commit of theirs is in flight.
#[derive(Default)]
pub(crate) struct Release(Option<Duration>);

impl Release {
    pub(crate) fn start(&mut self, clock: &Clock) {
        self.0 = Some(clock.now() + COMMIT_END_TIMEOUT);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether to release them now. `is_committing` says whether a commit of theirs is in flight.
    pub(crate) fn poll(&mut self, clock: &Clock, is_committing: impl FnOnce() -> bool) -> bool {
        let Some(deadline) = self.0 else { return false };
        if is_committing() {
            if clock.now() < deadline {
                return false;
            }
            tracing::warn!("releasing partitions with an offset commit that was not answered");
        }
        self.end();
        true
    }

    /// Does not wait any more: they are released already.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }
}
