//! Renewing locks, and detecting lost ones.

use campanile_core::{Answer, LostCause, Reply, State as EntryState};

use super::KeeperState;
use crate::keeper::calls::{QueueName, Sent};
use crate::keeper::deferred::Deferred;
use crate::keeper::slot::{CommandState, Phase};
use crate::store::StoreError;

impl KeeperState {
    pub(super) fn handle_renew_answer(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let ttl = slot.settings.ttl;
        let Phase::Held(held) = &mut slot.phase else {
            // The lock was settled in the meantime. If the settlement needs a command, it is next.
            return match slot.phase {
                Phase::Ended => self.remove_when_idle(index),
                _ => self.queue_command(index),
            };
        };
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Renewed) => held.extend(sent.at, ttl),
            // Completed by this grant, together with the effect of its handler, which is about to
            // report it.
            Ok(Reply::Settled(EntryState::Completed)) => held.renew_at = held.control.deadline(),
            Ok(Reply::Lost | Reply::Settled(_)) => self.lose_lock(index, LostCause::Superseded),
            // A single failure is harmless: there is time for more tries before the deadline.
            Ok(_) => held.renew_at = now + ttl / 24,
            Err(error) => {
                held.renew_at = now + ttl / 24;
                self.deferred.push(Deferred::LogRenewalFailure(error));
            }
        }
        self.check_lock(index);
    }

    /// Renews a held lock if a renewal is due, declares it lost if it is, and sets its next timer.
    pub(super) fn check_lock(&mut self, index: usize) {
        let now = self.clock.now();
        let Phase::Held(held) = &self.slots[index].phase else {
            return;
        };
        if held.is_lost {
            return;
        }
        if let Some(cause) = held.control.cause() {
            self.lose_lock(index, cause);
        } else if now >= held.hold_until {
            self.lose_lock(index, LostCause::MaxHold);
        } else if now >= held.renew_at && self.slots[index].command == CommandState::Queued {
            // A step waits in a queue of other commands. Its element there becomes stale.
            self.enqueue(QueueName::Renewals, index);
        } else if now >= held.renew_at || held.due_step(now).is_some() {
            self.queue_command(index);
        }
        let slot = &self.slots[index];
        if let Phase::Held(held) = &slot.phase {
            self.set_timer(index, held.next_check(slot.command, now));
        }
    }

    /// Makes `max_hold` begin now. The timer is not later than before, and finds the new end.
    pub(in crate::keeper) fn restart_hold(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Phase::Held(held) = &mut slot.phase {
            held.hold_until = self.clock.now() + slot.settings.max_hold;
        }
    }

    pub(super) fn lose_lock(&mut self, index: usize, cause: LostCause) {
        let slot = &mut self.slots[index];
        if let Phase::Held(held) = &mut slot.phase {
            held.set_lost(cause, &slot.settings.metrics);
            let (control, token) = (held.control.clone(), held.grant.token);
            self.deferred.push(Deferred::LoseLock(control, cause, slot.events(token)));
        }
    }
}
