//! Revoked partitions: drained and committed before they are released.

use std::sync::Arc;
use std::task::Context;

use super::assignment::Assignment;
use super::commit_schedule::FinalCommit;
use super::event_loop::Driver;
use super::scheduler::DrainId;
#[cfg(test)]
use super::simulation::{Bug, is_planted};
use super::source::Source;

/// Revoked partitions that are not released yet.
pub(super) struct Revocation {
    pub(super) partitions: Vec<Arc<Assignment>>,
    pub(super) lost: bool,
    /// The drain of the partitions, and those of their seeks.
    pub(super) drains: Vec<DrainId>,
    /// Set once the partitions are drained.
    pub(super) commit: Option<FinalCommit>,
}

impl<S: Source> Driver<S> {
    /// Releases revoked partitions once they are drained and committed. Returns whether it has
    /// released any.
    pub(super) fn poll_revoke(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(revoke) = &mut self.revoke else {
            return false;
        };
        let drained = revoke.drains.iter().all(|drain| self.scheduler.is_drain_finished(*drain));
        #[cfg(test)]
        let drained = drained || is_planted(Bug::RevokeNotDrained);
        if !drained {
            return false;
        }
        if !revoke.lost {
            let commit = revoke.commit.get_or_insert_with(FinalCommit::new);
            let (commits, source) = (&mut self.commits, &mut self.source);
            if commit.poll(cx, commits, source, &revoke.partitions).is_pending() {
                return false;
            }
        }
        // What is not committed by now is left to the partitions' next owners.
        revoke.partitions.iter().for_each(|assignment| assignment.close());
        self.assigned.retain(|assignment| !revoke.partitions.iter().any(|r| r.id == assignment.id));
        self.scheduler.control().report_released(&revoke.partitions, revoke.lost);
        self.revoke = None;
        self.source.release();
        true
    }
}
