//! Bounds on the keeper's memory while the store is unavailable and requests are abandoned.

use std::collections::VecDeque;

use super::State;
use crate::keeper::calls::QueueName;
use crate::keeper::slot::CommandState;
use crate::store::StoreError;

/// The number of keys in doubt at which no new key is acquired. A key is in doubt if its acquire
/// was not answered and is being cancelled, or if its settlement was not answered and is being
/// repeated.
///
/// Such keys are kept even if their callers are gone. At the limit they take about ten megabytes,
/// and a store that is available again answers them in less than a second.
pub(super) const MOST_IN_DOUBT: usize = 16 * 1024;

pub(super) fn overloaded() -> StoreError {
    StoreError::overloaded(format!(
        "{MOST_IN_DOUBT} commands are unanswered; no further key is acquired until some of them are \
         answered"
    ))
}

impl State {
    /// Removes the slots of requests that were dropped before their acquire was sent, whenever the
    /// number of slots has doubled: while calls hang, more requests arrive than are sent.
    pub(super) fn sweep(&mut self) {
        const LEAST: usize = 1024;
        if self.slots.len() < self.sweep_at.max(LEAST) {
            return;
        }
        for queue in [QueueName::Callers, QueueName::Background] {
            let mut kept = VecDeque::new();
            for index in std::mem::take(self.queues.of(queue)) {
                // A place may be stale, as in a batch.
                let slot = self.slots.get_mut(index);
                let Some(slot) = slot.filter(|slot| slot.command == CommandState::Queued) else {
                    continue;
                };
                if slot.is_abandoned() {
                    slot.command = CommandState::Idle;
                    self.end_when_idle(index);
                } else {
                    kept.push_back(index);
                }
            }
            *self.queues.of(queue) = kept;
        }
        self.sweep_at = self.slots.len() * 2;
    }
}
