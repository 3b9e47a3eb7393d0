//! Cancelling an acquire that was not answered.

use std::time::Duration;

use campanile_core::Answer;

use super::{State, is_unreadable, repeat_after};
use crate::keeper::deferred::Deferred;
use crate::keeper::request::Acquisition;
use crate::keeper::slot::Phase;
use crate::store::StoreError;

/// The minimum time for which a cancel is repeated. After that, the attempt remains counted.
const CANCEL_FOR: Duration = Duration::from_secs(60);

impl State {
    pub(super) fn cancel(&mut self, index: usize) {
        let until = self.clock.now() + CANCEL_FOR.max(self.slots[index].terms.ttl);
        self.slots[index].phase = Phase::Cancelling { tries: 0, until, next: None };
        self.in_doubt += 1;
        self.queue(index);
    }

    pub(super) fn cancel_answered(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let Phase::Cancelling { tries, until, next } = &mut slot.phase else {
            unreachable!("only a cancelling slot has sent a cancel");
        };
        let next = next.take();
        match answer {
            Err(error) if !is_unreadable(&error) => {
                let again = now < *until;
                *tries += 1;
                let at = now + repeat_after(*tries);
                if let Some(next) = next {
                    self.refuse(next, Acquisition::Unavailable(error));
                }
                if again {
                    self.set_timer(index, Some(at));
                } else {
                    self.cancelled(index);
                }
            }
            // The cancel was answered. If the entry cannot be read, the next request fails for the
            // same reason.
            Ok(_) | Err(_) => {
                self.cancelled(index);
                match next {
                    Some(next) if next.reply.is_closed() => {
                        self.deferred.push(Deferred::Abandoned(next));
                    }
                    Some(next) => self.acquire(next),
                    None => {}
                }
            }
        }
    }

    fn cancelled(&mut self, index: usize) {
        self.slots[index].phase = Phase::Ended;
        self.in_doubt -= 1;
        self.end_when_idle(index);
    }
}
