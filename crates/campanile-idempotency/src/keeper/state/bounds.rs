//! What keeps the keeper small while the store is away, and requests come and leave.

use std::collections::VecDeque;

use super::Task;
use crate::keeper::slot::{Phase, Way};
use crate::store::{Store, StoreError};

/// How many keys may be in doubt before no new one is acquired: those whose acquire was not answered
/// and is cancelled, and those whose settlement was not answered and is repeated. They are kept although
/// their callers leave. So many take some ten megabytes, and a store that is back is done with them in
/// less than a second.
pub(super) const MOST_IN_DOUBT: usize = 16 * 1024;

pub(super) fn overloaded() -> StoreError {
    StoreError::overloaded(format!(
        "{MOST_IN_DOUBT} commands have not been answered, and none is sent for another key until some \
         of them are"
    ))
}

impl<S: Store> Task<S> {
    /// Lets go of acquires that were not sent and whose callers have left, whenever the slots have
    /// doubled: while calls hang, more come and leave than are sent.
    pub(super) fn sweep(&mut self) {
        const LEAST: usize = 1024;
        if self.slots.len() < self.sweep_at.max(LEAST) {
            return;
        }
        let mut kept = VecDeque::new();
        for index in std::mem::take(&mut self.commands.slots) {
            // A place may be stale, as in a batch.
            let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.way == Way::Queued)
            else {
                continue;
            };
            if slot.is_abandoned() {
                slot.phase = Phase::Ended;
                self.end_when_idle(index);
            } else {
                kept.push_back(index);
            }
        }
        self.commands.slots = kept;
        self.sweep_at = self.slots.len() * 2;
    }
}
