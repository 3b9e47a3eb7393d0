//! Keys on which processes of two releases work, and what `step` makes of their operations.

use std::time::SystemTime;

use campanile_core::{Entry, FencingToken, Grant, Operation, Reply, step};
use fastrand::Rng;

use super::draw::{self, Sources};

/// Few, so that the grants of one process are settled by the other.
pub(super) const KEYS: usize = 8;

/// The number of operations after which a test may end.
pub(super) const OPERATIONS: usize = 3_000;

/// The release of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    V0_1,
    Present,
}

/// What `step` makes of the operations on a key.
#[derive(Default)]
pub(super) struct SharedKey {
    pub(super) entry: Option<Entry>,
    stale: Option<Grant>,
    granted_by: Option<Release>,
    recorded_by: Option<Release>,
}

/// How often each release, 0.1 first, continued what the other had begun, or answered a duplicate.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    settled_grants: [usize; 2],
    resumed_steps: [usize; 2],
    answered_duplicates: [usize; 2],
}

impl SharedKey {
    /// Draws an operation. `now` is the server's clock, in µs.
    pub(super) fn draw(&self, rng: &mut Rng, now: u64) -> Operation {
        let stored = self.entry.as_ref().map(|entry| (entry.token(), entry.owner()));
        let floor = FencingToken::ZERO;
        draw::operation(rng, &Sources { stored, stale: self.stale, now, floor })
    }

    /// Applies an operation that a process of this release has sent, and returns the reply of `step`.
    pub(super) fn apply(
        &mut self,
        release: Release,
        operation: &Operation,
        now: SystemTime,
        handovers: &mut Handovers,
    ) -> Reply {
        let grant = |entry: &Entry| Some(Grant { token: entry.token(), owner: entry.owner()? });
        self.stale = self.entry.as_ref().and_then(grant);
        let (entry, reply) = step(self.entry.take(), operation, now);
        self.entry = entry;
        let by = release as usize;
        let by_other = |by: Option<Release>| usize::from(by.is_some_and(|by| by != release));
        match &reply {
            Reply::Acquired { steps, .. } => {
                let has_steps = usize::from(steps.is_some());
                handovers.resumed_steps[by] += has_steps * by_other(self.recorded_by);
                self.granted_by = Some(release);
            }
            Reply::StepRecorded => self.recorded_by = Some(release),
            Reply::Completed | Reply::Retrying | Reply::Released | Reply::GivenUp => {
                handovers.settled_grants[by] += by_other(self.granted_by.take());
            }
            Reply::Duplicate { reply: Some(_), details: Some(_), .. } => {
                handovers.answered_duplicates[by] += 1;
            }
            _ => {}
        }
        reply
    }
}

impl Handovers {
    /// Whether each case has occurred.
    pub(super) fn are_complete(&self) -> bool {
        let Self { settled_grants, resumed_steps, answered_duplicates } = self;
        [settled_grants, resumed_steps, answered_duplicates]
            .iter()
            .all(|counts| !counts.contains(&0))
    }
}
