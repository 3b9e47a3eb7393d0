//! Acquiring: one acquisition per key at a time.

use std::collections::hash_map::Entry;
use std::time::Duration;

use campanile_core::{Answer, FencingToken, Reply};
use tokio::sync::oneshot;

use super::bounds::{MOST_IN_DOUBT, overloaded};
use super::{State, corrupt};
use crate::keeper::calls::Sent;
use crate::keeper::deferred::{Burial, Deferred};
use crate::keeper::ends::{self, Known};
use crate::keeper::request::{Acquire, Acquisition, Settlement};
use crate::keeper::slot::{Held, Phase, Slot};
use crate::store::StoreError;

impl State {
    pub(in crate::keeper) fn acquire(&mut self, acquire: Acquire) {
        if self.is_stopped {
            return self.deferred.push(Deferred::Abandoned(acquire));
        }
        if self.is_shutting_down {
            return self.refuse(acquire, Acquisition::ShuttingDown);
        }
        self.sweep();
        let index = match self.by_key.entry(acquire.key.clone()) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                if let Some(end) = self.ends.find(&acquire.key) {
                    let known = ends::answer(&end, acquire.fingerprint, &self.clock);
                    self.deferred.push(Deferred::End(end));
                    if let Some(known) = known {
                        return self.refuse(acquire, known);
                    }
                }
                if self.in_doubt >= MOST_IN_DOUBT {
                    return self.refuse(acquire, Acquisition::Unavailable(overloaded()));
                }
                let index = *place.insert(self.slots.insert(Slot::new(acquire)));
                return self.queue(index);
            }
        };
        let slot = &mut self.slots[index];
        // A previous acquire is in doubt. This request is next, and waits for the answer to the
        // cancel.
        if let Phase::Cancelling { next, .. } = &mut slot.phase
            && next.as_ref().is_none_or(|next| next.reply.is_closed())
        {
            let before = next.replace(acquire);
            self.deferred.extend(before.map(Deferred::Abandoned));
            self.set_timer(index, None);
            self.queue(index);
        } else {
            let retry_after = slot.terms.ttl;
            let settled = Some(slot.settled());
            self.refuse(acquire, Acquisition::Locked { retry_after, settled });
        }
    }

    pub(super) fn refuse(&mut self, acquire: Acquire, answer: Acquisition) {
        let Acquire { key, interrupt, reply, .. } = acquire;
        self.deferred.push(Deferred::Answer(reply, answer));
        self.deferred.push(Deferred::Request(key, interrupt));
    }

    /// Raises the floor, except to an absurdly large token, which would spread to every key.
    pub(super) fn raise_floor(&mut self, answer: &Answer) {
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
        let Phase::Acquiring { reply: waiting, .. } =
            std::mem::replace(&mut slot.phase, Phase::Ended)
        else {
            unreachable!("only an acquiring slot has sent an acquire");
        };
        let outcome = match answer.map(|answer| answer.reply) {
            Ok(Reply::Acquired { token, attempt }) => {
                return self.granted(sent, token, attempt, waiting, None);
            }
            Ok(Reply::Exhausted { token, attempt, burials, last_error }) => {
                let (attempts, burials) = (attempt.into(), burials.into());
                let burial = Some(Burial { attempts, burials, last_error });
                return self.granted(sent, token, attempt, waiting, burial);
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
            Ok(_) => {
                Acquisition::Unavailable(StoreError::unreadable("unexpected reply to an acquire"))
            }
            Err(error) if !error.was_sent() => Acquisition::Unavailable(error),
            Err(error) => {
                let unavailable = Acquisition::Unavailable(error);
                self.deferred.push(Deferred::Answer(waiting, unavailable));
                // The acquire may have been granted, and only its reply lost.
                return self.cancel(index);
            }
        };
        if let Some(known) = Known::of(&outcome) {
            slot.ended(known, &self.clock);
        }
        self.deferred.push(Deferred::Answer(waiting, outcome));
        self.end_when_idle(index);
    }

    fn granted(
        &mut self,
        sent: Sent,
        token: FencingToken,
        attempt: u16,
        reply: oneshot::Sender<Acquisition>,
        burial: Option<Burial>,
    ) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let held = Held::new(slot, token, attempt, sent.at, &self.clock);
        let next = held.next_check(false);
        let control = held.control.clone();
        slot.phase = Phase::Held(held);
        self.set_timer(index, next);
        if next.is_some() {
            // If the receiver is gone, the lock is dropped, which releases it.
            self.deferred.push(Deferred::Grant { reply, control, slot: index, burial });
        } else {
            let late = StoreError::timeout("the lock expired before its grant arrived");
            self.deferred.push(Deferred::Answer(reply, Acquisition::Unavailable(late)));
            self.settle(index, Settlement::Release { ran: false }, None);
        }
    }
}
