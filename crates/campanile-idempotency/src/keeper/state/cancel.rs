//! Cancelling an acquire whose answer did not come.

use std::time::Duration;

use campanile_core::Answer;

use super::{Task, is_unreadable, repeat_after};
use crate::keeper::request::Acquisition;
use crate::keeper::slot::Phase;
use crate::store::{Store, StoreError};

/// An acquire in doubt is cancelled for at least so long; after that the attempt stays counted.
const CANCEL_FOR: Duration = Duration::from_secs(60);

impl<S: Store> Task<S> {
    pub(super) fn cancel(&mut self, index: usize) {
        let until = self.clock.now() + CANCEL_FOR.max(self.slots[index].terms.ttl);
        self.slots[index].phase = Phase::Cancelling { tries: 0, until, next: None };
        self.in_doubt += 1;
        self.want(index);
    }

    pub(super) fn cancel_answered(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let Phase::Cancelling { tries, until, next } = &mut slot.phase else {
            unreachable!("a cancel waits for its answer");
        };
        let next = next.take().filter(|next| !next.reply.is_closed());
        match answer {
            Err(error) if !is_unreadable(&error) => {
                if let Some(next) = next {
                    let _ = next.reply.send(Acquisition::Unavailable(error));
                }
                if now < *until {
                    *tries += 1;
                    let at = now + repeat_after(*tries);
                    return self.timers.set(index, &mut slot.timer, Some(at));
                }
                slot.phase = Phase::Ended;
                self.in_doubt -= 1;
                self.end_when_idle(index);
            }
            // Answered; what cannot be read will be said to who asks next, too.
            Ok(_) | Err(_) => {
                slot.phase = Phase::Ended;
                self.in_doubt -= 1;
                self.end_when_idle(index);
                if let Some(next) = next {
                    self.acquire(next);
                }
            }
        }
    }
}
