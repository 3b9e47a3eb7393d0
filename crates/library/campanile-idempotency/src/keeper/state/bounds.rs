//! Bounds on the keeper's memory while the store is unavailable and requests are abandoned.

use std::collections::VecDeque;

use super::KeeperState;
use crate::keeper::calls::QueueName;
use crate::keeper::slot::CommandState;
use crate::store::StoreError;

/// The number of keys in doubt at which no new key is acquired. A key is in doubt if its acquire
/// was not answered and is being cancelled, or if its settlement was not answered and is being
/// repeated.
///
/// Such keys are kept even if their callers are gone. At the limit they take about ten megabytes,
/// and a store that is available again answers them in less than a second.
pub(super) const MAX_IN_DOUBT: usize = 16 * 1024;

pub(super) fn overloaded_error() -> StoreError {
    StoreError::overloaded(format!(
        "{MAX_IN_DOUBT} commands are unanswered; no further key is acquired until some of them are \
         answered"
    ))
}

impl KeeperState {
    /// Removes the slots of requests that were dropped before their acquire was sent, whenever the
    /// number of slots has doubled: while calls hang, more requests arrive than are sent.
    pub(super) fn remove_abandoned(&mut self) {
        const MIN_CLEANUP_LEN: usize = 1024;
        if self.slots.len() < self.cleanup_at.max(MIN_CLEANUP_LEN) {
            return;
        }
        for queue in [QueueName::Callers, QueueName::Background] {
            let mut kept = VecDeque::new();
            for index in std::mem::take(self.queues.of(queue)) {
                // An element may be stale, as in a batch.
                let slot = self.slots.get_mut(index);
                let Some(slot) = slot.filter(|slot| slot.command == CommandState::Queued) else {
                    continue;
                };
                if slot.is_abandoned() {
                    slot.command = CommandState::Idle;
                    self.remove_when_idle(index);
                } else {
                    kept.push_back(index);
                }
            }
            *self.queues.of(queue) = kept;
        }
        self.cleanup_at = self.slots.len() * 2;
    }
}
