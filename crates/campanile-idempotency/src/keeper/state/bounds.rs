//! What keeps the keeper small while the store is away, and requests come and leave.

use std::collections::VecDeque;

use super::State;
use crate::keeper::calls::QueueName;
use crate::keeper::slot::CommandState;
use crate::store::StoreError;

/// How many keys may be in doubt before no new one is acquired: those whose acquire was not answered
/// and is cancelled, and those whose settlement was not answered and is repeated. They are kept although
/// their callers leave. At the limit they take some ten megabytes, and a store that is available again
/// has answered them in less than a second.
pub(super) const MOST_IN_DOUBT: usize = 16 * 1024;

pub(super) fn overloaded() -> StoreError {
    StoreError::overloaded(format!(
        "{MOST_IN_DOUBT} commands have not been answered, and none is sent for another key until some \
         of them are"
    ))
}

impl State {
    /// Removes the slots of requests that were dropped before their acquire was sent, whenever the slots
    /// have doubled: while calls hang, more of them come than are sent.
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
