//! Acquiring: one at a time for each key.

use std::collections::hash_map::Entry;
use std::time::Duration;

use campanile_core::{Answer, FencingToken, Reply};
use tokio::sync::oneshot;

use super::bounds::{MOST_IN_DOUBT, overloaded};
use super::{Task, corrupt};
use crate::keeper::HeldLock;
use crate::keeper::calls::Sent;
use crate::keeper::ends::Known;
use crate::keeper::request::{Acquire, Acquisition, Settle, Settlement};
use crate::keeper::slot::{Held, Phase, Slot};
use crate::store::{Store, StoreError};

impl<S: Store> Task<S> {
    pub(super) fn acquire(&mut self, acquire: Acquire) {
        if self.stopping {
            let _ = acquire.reply.send(Acquisition::ShuttingDown);
            return;
        }
        self.sweep();
        let index = match self.by_key.entry(acquire.key.clone()) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                let known = self.ends.answer(&acquire.key, acquire.fingerprint, &self.clock);
                if let Some(known) = known {
                    let _ = acquire.reply.send(known);
                    return;
                }
                if self.in_doubt >= MOST_IN_DOUBT {
                    let _ = acquire.reply.send(Acquisition::Unavailable(overloaded()));
                    return;
                }
                let index = *place.insert(self.slots.insert(Slot::new(acquire)));
                return self.want(index);
            }
        };
        let slot = &mut self.slots[index];
        // An acquire of ours is in doubt: this one is next, and what it asks for now is the answer to
        // the cancel.
        if let Phase::Cancelling { next, .. } = &mut slot.phase
            && next.as_ref().is_none_or(|next| next.reply.is_closed())
        {
            *next = Some(acquire);
            self.timers.set(index, &mut slot.timer, None);
            self.want(index);
        } else {
            let retry_after = slot.terms.ttl;
            let settled = Some(slot.settled());
            let _ = acquire.reply.send(Acquisition::Locked { retry_after, settled });
        }
    }

    /// Raises the floor, but not to an absurd token, which would spread to every key.
    pub(super) fn saw(&mut self, answer: &Answer) {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        if let Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } = answer.reply {
            let sane = (answer.now + DAY).duration_since(std::time::UNIX_EPOCH);
            if sane.is_ok_and(|sane| u128::from(token.get()) <= sane.as_micros()) {
                self.floor = self.floor.max(token);
            }
        }
    }

    pub(super) fn acquire_answered(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let ttl = slot.terms.ttl;
        let Phase::Acquiring { reply: waiting } = std::mem::replace(&mut slot.phase, Phase::Ended)
        else {
            unreachable!("an acquisition waits for its answer");
        };
        let outcome = match answer.map(|answer| answer.reply) {
            Ok(Reply::Acquired { token, attempt }) => {
                return self.granted(sent, token, attempt, waiting, Acquisition::Held);
            }
            Ok(Reply::Exhausted { token, attempt, burials, last_error }) => {
                return self.granted(sent, token, attempt, waiting, |lock| {
                    let (attempts, burials) = (attempt.into(), burials.into());
                    Acquisition::Exhausted { lock, attempts, burials, last_error }
                });
            }
            Ok(Reply::Locked { remaining }) => {
                let poll = (ttl / 3).mul_f64(0.9 + 0.2 * fastrand::f64());
                let retry_after = remaining.min(poll).max(Duration::from_millis(50));
                Acquisition::Locked { retry_after, settled: None }
            }
            Ok(Reply::BackingOff { remaining, attempt }) => {
                Acquisition::BackingOff { retry_after: remaining, attempts: attempt.into() }
            }
            Ok(Reply::Duplicate { reply, attempt, completed_at }) => {
                Acquisition::Duplicate { reply, attempts: attempt.into(), completed_at }
            }
            Ok(Reply::Parked { attempt, reason }) => {
                Acquisition::Parked { attempts: attempt.into(), reason }
            }
            Ok(Reply::Mismatch) => Acquisition::Mismatch,
            Ok(Reply::Corrupt) => Acquisition::Unavailable(corrupt()),
            Ok(_) => Acquisition::Unavailable(StoreError::unreadable("not an acquire's answer")),
            Err(error) if !error.was_sent() => Acquisition::Unavailable(error),
            Err(error) => {
                let _ = waiting.send(Acquisition::Unavailable(error));
                // The reply may have been lost only on its way here.
                return self.cancel(index);
            }
        };
        if let Some(known) = Known::of(&outcome) {
            slot.ended(known, &self.clock);
        }
        let _ = waiting.send(outcome);
        self.end_when_idle(index);
    }

    pub(super) fn granted(
        &mut self,
        sent: Sent,
        token: FencingToken,
        attempt: u16,
        waiting: oneshot::Sender<Acquisition>,
        outcome: impl FnOnce(HeldLock) -> Acquisition,
    ) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let held = Held::new(slot, token, attempt, sent.at, &self.clock);
        let next = held.next(false);
        let lock = held.lock.clone();
        slot.phase = Phase::Held(held);
        match (self.messages.upgrade(), next) {
            (Some(messages), Some(_)) => {
                self.timers.set(index, &mut slot.timer, next);
                // If nobody waits any more, the lock is dropped here and comes back as a release.
                let _ = waiting.send(outcome(HeldLock::new(lock, index, messages)));
            }
            // The answer took longer than the lock lives, or nobody is left to have it.
            _ => {
                let late = StoreError::timeout("the lock had expired when its answer came");
                let _ = waiting.send(Acquisition::Unavailable(late));
                let settlement = Settlement::Release { ran: false };
                self.settle(Settle { slot: index, settlement, reply: None });
            }
        }
    }
}
