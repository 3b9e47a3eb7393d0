//! Cancelling an acquire that was not answered.

use std::time::Duration;

use campanile_core::Answer;

use super::{KeeperState, is_final, retry_delay};
use crate::keeper::request::Acquisition;
use crate::keeper::slot::Phase;
use crate::store::StoreError;

/// The minimum time for which a cancel is repeated. After that, the attempt remains counted.
const MIN_CANCEL_PERIOD: Duration = Duration::from_secs(60);

impl KeeperState {
    pub(super) fn start_cancel(&mut self, index: usize) {
        let until = self.clock.now() + MIN_CANCEL_PERIOD.max(self.slots[index].settings.ttl);
        self.slots[index].phase = Phase::Cancelling { tries: 0, until, next: None };
        self.in_doubt += 1;
        self.queue_command(index);
    }

    pub(super) fn handle_cancel_answer(
        &mut self,
        index: usize,
        answer: Result<Answer, StoreError>,
    ) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let Phase::Cancelling { tries, until, next } = &mut slot.phase else {
            unreachable!("only a cancelling slot has sent a cancel");
        };
        let next = next.take();
        match answer {
            Err(error) if !is_final(&error) => {
                let should_retry = now < *until;
                *tries += 1;
                let at = now + retry_delay(*tries);
                if let Some(next) = next {
                    self.refuse(next, Acquisition::Unavailable(error));
                }
                if should_retry {
                    self.set_timer(index, Some(at));
                } else {
                    self.finish_cancel(index);
                }
            }
            // The cancel was answered. If the entry cannot be read or found, the next request
            // fails for the same reason.
            Ok(_) | Err(_) => {
                self.finish_cancel(index);
                // If that request was dropped, its acquire is not sent.
                if let Some(next) = next {
                    self.acquire(next);
                }
            }
        }
    }

    fn finish_cancel(&mut self, index: usize) {
        self.slots[index].phase = Phase::Ended;
        self.in_doubt -= 1;
        self.remove_when_idle(index);
    }
}
