//! Renewing, and finding out that a lock is lost.

use campanile_core::{Answer, LostCause, Reply, State};

use super::Task;
use crate::keeper::calls::Sent;
use crate::keeper::slot::{Phase, Way};
use crate::store::{Store, StoreError};

impl<S: Store> Task<S> {
    pub(super) fn renew_answered(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let ttl = slot.terms.ttl;
        let Phase::Held(held) = &mut slot.phase else {
            // Settled meanwhile: that command is the one to send now, if there is one.
            return match slot.phase {
                Phase::Ended => self.end_when_idle(index),
                _ => self.want(index),
            };
        };
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Renewed) => held.renewed(sent.at, ttl),
            // By this very grant: its handler's transaction, which is about to say so.
            Ok(Reply::Settled(State::Completed)) => held.renew_at = held.lock.deadline(),
            Ok(Reply::Lost | Reply::Settled(_)) => {
                tracing::warn!(token = held.grant.token.get(), "lock lost to another grant");
                held.lock.lose(LostCause::Superseded);
            }
            // One failed round loses nothing: there is time for some more before the deadline.
            Ok(_) => held.renew_at = now + ttl / 24,
            Err(error) => {
                tracing::debug!(%error, "renewal failed");
                held.renew_at = now + ttl / 24;
            }
        }
        self.look(index);
    }

    /// Renews a held lock if that is due, declares it lost if it is, and sets its next timer.
    pub(super) fn look(&mut self, index: usize) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let Phase::Held(held) = &slot.phase else {
            return;
        };
        if let Some(lost) = held.lock.loss() {
            // One that has ended is about to be settled.
            if lost.cause != LostCause::Ended {
                tracing::warn!(token = lost.token.get(), cause = ?lost.cause, "lock lost");
            }
        } else if now >= held.hold_until {
            tracing::warn!(token = held.grant.token.get(), "lock held too long, not renewed");
            held.lock.lose(LostCause::MaxHold);
        } else if now >= held.renew_at {
            self.want(index);
        }
        let slot = &mut self.slots[index];
        let Phase::Held(held) = &slot.phase else {
            return;
        };
        let next = held.next(slot.way != Way::Idle);
        self.timers.set(index, &mut slot.timer, next);
    }
}
