//! Cancelling an acquire whose answer did not come.

use std::time::Duration;

use campanile_core::Answer;

use super::{Task, is_unreadable, repeat_after};
use crate::keeper::slot::{Phase, draw_owner};
use crate::store::{Store, StoreError};

/// An acquire in doubt is cancelled for at least so long; after that the attempt stays counted.
const CANCEL_FOR: Duration = Duration::from_secs(60);

impl<S: Store> Task<S> {
    pub(super) fn cancel(&mut self, index: usize) {
        let until = self.clock.now() + CANCEL_FOR.max(self.slots[index].terms.ttl);
        self.slots[index].phase = Phase::Cancelling { tries: 0, until };
        self.want(index);
    }

    pub(super) fn cancel_answered(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        match (&mut slot.phase, answer) {
            // Somebody asked for the key meanwhile; the nonce is used up if it was cancelled.
            (Phase::Acquiring { doubt, .. }, answer) => {
                if answer.is_ok() {
                    slot.owner = draw_owner();
                    *doubt = false;
                }
                self.want(index);
            }
            (Phase::Cancelling { tries, until }, Err(error))
                if now < *until && !is_unreadable(&error) =>
            {
                *tries += 1;
                let at = now + repeat_after(*tries);
                self.timers.set(index, &mut slot.timer, Some(at));
            }
            _ => {
                slot.phase = Phase::Ended;
                self.end_when_idle(index);
            }
        }
    }
}
