//! The timers of the slots.

use std::collections::BTreeSet;
use std::time::Duration;

/// At most one time per slot, by the keeper's clock. Most locks are settled long before their timer
/// fires, so removing a timer must be as cheap as setting it.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Duration, usize)>);

impl Timers {
    /// Moves the timer of a slot; `old` is its previous time.
    pub(super) fn set(&mut self, slot: usize, old: &mut Option<Duration>, at: Option<Duration>) {
        if let Some(old) = old.take() {
            self.0.remove(&(old, slot));
        }
        if let Some(at) = at {
            self.0.insert((at, slot));
            *old = Some(at);
        }
    }

    pub(super) fn next(&self) -> Option<Duration> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes the earliest timer, if it is due.
    pub(super) fn pop(&mut self, now: Duration) -> Option<usize> {
        let (at, slot) = *self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        Some(slot)
    }
}
