//! Revoked partitions: drained ([`drain`](crate::scheduler::drain)) and committed before they are released.

use std::sync::Arc;
use std::task::Context;

use crate::event_loop::EventLoop;
use crate::event_loop::commits::FinalCommit;
use crate::scheduler::DrainId;
use crate::source::{Assignment, Source};

/// Revoked partitions that are not released yet.
pub(crate) struct Revocation {
    pub(crate) partitions: Vec<Arc<Assignment>>,
    pub(crate) lost: bool,
    /// The drain of the partitions, and those of their seeks.
    pub(crate) drains: Vec<DrainId>,
    /// Set once the partitions are drained.
    pub(crate) commit: Option<FinalCommit>,
}

impl<S: Source> EventLoop<S> {
    /// Releases revoked partitions once they are drained and committed. Returns whether it has
    /// released any.
    pub(crate) fn poll_revoke(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(revoke) = &mut self.revoke else {
            return false;
        };
        let drained = revoke.drains.iter().all(|drain| self.scheduler.is_drain_finished(*drain));
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
