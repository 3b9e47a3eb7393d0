//! Acquiring: one acquisition per key at a time.

use std::collections::hash_map::Entry;
use std::time::Duration;

use campanile_core::telemetry::DuplicateCause;
use campanile_core::{Answer, FencingToken, Reply, Steps};
use tokio::sync::oneshot;

use super::bounds::{MAX_IN_DOUBT, overloaded_error};
use super::{KeeperState, corrupt_error};
use crate::keeper::calls::Sent;
use crate::keeper::deferred::{Deferred, GiveUp};
use crate::keeper::request::{AcquireRequest, Acquisition, Settlement};
use crate::keeper::results::{self, LocalAnswer};
use crate::keeper::slot::{CommandState, HeldGrant, Phase, Slot};
use crate::store::StoreError;

impl KeeperState {
    pub(in crate::keeper) fn acquire(&mut self, acquire: AcquireRequest) {
        if self.is_stopped {
            return self.deferred.push(Deferred::DropAcquire(acquire));
        }
        if self.is_shutting_down {
            return self.refuse(acquire, Acquisition::ShuttingDown);
        }
        self.remove_abandoned();
        let index = match self.by_key.entry(acquire.key.store_key.clone()) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                if let Some(result) = self.results.find(&acquire.key.store_key) {
                    let answer = results::answer(&result, acquire.fingerprint, &self.clock);
                    self.deferred.push(Deferred::DropResult(result));
                    if let Some(answer) = answer {
                        return self.refuse(acquire, answer);
                    }
                }
                if self.in_doubt >= MAX_IN_DOUBT {
                    let error = overloaded_error();
                    self.metrics.count_error(&error);
                    return self.refuse(acquire, Acquisition::Unavailable(error));
                }
                let index = *entry.insert(self.slots.insert(Slot::new(acquire)));
                return self.queue_command(index);
            }
        };
        let slot = &mut self.slots[index];
        // A previous acquire is in doubt. This request is next, and waits for the answer to the
        // cancel.
        if let Phase::Cancelling { next, .. } = &mut slot.phase
            && next.as_ref().is_none_or(|next| next.reply.is_closed())
        {
            let replaced = next.replace(acquire);
            self.deferred.extend(replaced.map(Deferred::DropAcquire));
            self.set_timer(index, None);
            self.queue_command(index);
        } else {
            let retry_after = slot.settings.ttl;
            let settled = Some(slot.settled());
            self.refuse(acquire, Acquisition::Locked { retry_after, settled });
        }
    }

    pub(super) fn refuse(&mut self, acquire: AcquireRequest, answer: Acquisition) {
        let AcquireRequest { key, interrupt, reply, .. } = acquire;
        self.deferred.push(Deferred::SendAcquisition(reply, answer));
        self.deferred.push(Deferred::DropRequest(key, interrupt));
    }

    /// Raises the floor, except to an absurdly large token, which would spread to every key.
    pub(super) fn raise_floor(&mut self, answer: &Answer) {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        if let Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } = answer.reply {
            let limit = (answer.now + DAY).duration_since(std::time::UNIX_EPOCH);
            if limit.is_ok_and(|limit| u128::from(token.get()) <= limit.as_micros()) {
                self.floor = self.floor.max(token);
            }
        }
    }

    pub(super) fn handle_acquire_answer(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let ttl = slot.settings.ttl;
        let Phase::Acquiring { reply, was_sent } = std::mem::replace(&mut slot.phase, Phase::Ended)
        else {
            unreachable!("only an acquiring slot has sent an acquire");
        };
        let now = answer.as_ref().map(|answer| answer.now).ok();
        let outcome = match answer.map(|answer| answer.reply) {
            Ok(Reply::Acquired { token, attempt, steps }) => {
                return self.grant_lock(sent, (token, attempt, steps), reply, None);
            }
            Ok(Reply::Exhausted { token, attempt, give_ups, last_error }) => {
                let (attempts, give_ups) = (attempt.into(), give_ups.into());
                let giving_up = Some(GiveUp { attempts, give_ups, last_error });
                return self.grant_lock(sent, (token, attempt, None), reply, giving_up);
            }
            Ok(Reply::Locked { remaining }) => {
                let poll_interval = (ttl / 3).mul_f64(0.9 + 0.2 * fastrand::f64());
                let retry_after = remaining.min(poll_interval).max(Duration::from_millis(50));
                Acquisition::Locked { retry_after, settled: None }
            }
            Ok(Reply::BackingOff { remaining, attempt }) => {
                Acquisition::BackingOff { retry_after: remaining, attempts: attempt.into() }
            }
            Ok(Reply::Duplicate { reply, attempt, completed_at, details }) => {
                let (attempts, cause) = (attempt.into(), DuplicateCause::Unknown);
                let age = now.and_then(|now| now.duration_since(completed_at).ok());
                let age = age.unwrap_or_default();
                Acquisition::Duplicate { reply, attempts, completed_at, details, cause, age }
            }
            Ok(Reply::AlreadyGivenUp { attempt, reason }) => {
                Acquisition::AlreadyGivenUp { attempts: attempt.into(), reason }
            }
            Ok(Reply::Mismatch) => Acquisition::Mismatch,
            Ok(Reply::Corrupt) => Acquisition::Unavailable(corrupt_error()),
            Ok(_) => {
                Acquisition::Unavailable(StoreError::unreadable("unexpected reply to an acquire"))
            }
            Err(error) if !was_sent && !error.was_sent() => Acquisition::Unavailable(error),
            Err(error) => {
                let unavailable = Acquisition::Unavailable(error);
                self.deferred.push(Deferred::SendAcquisition(reply, unavailable));
                // The acquire may have been granted, and only its reply lost.
                return self.start_cancel(index);
            }
        };
        if let Some(answer) = LocalAnswer::from_acquisition(&outcome) {
            slot.set_result(answer, &self.clock);
        }
        self.deferred.push(Deferred::SendAcquisition(reply, outcome));
        self.remove_when_idle(index);
    }

    fn grant_lock(
        &mut self,
        sent: Sent,
        (token, attempt, steps): (FencingToken, u16, Option<Steps>),
        reply: oneshot::Sender<Acquisition>,
        giving_up: Option<GiveUp>,
    ) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let held = HeldGrant::new(slot, token, attempt, steps, sent.at, &self.clock);
        let next = held.next_check(CommandState::Idle, self.clock.now());
        let control = held.control.clone();
        slot.phase = Phase::Held(held);
        self.set_timer(index, next);
        if next.is_some() {
            // If the receiver is gone, the lock is dropped, which releases it.
            self.deferred.push(Deferred::SendGrant { reply, control, slot: index, giving_up });
        } else {
            let error = StoreError::timeout("the lock expired before its grant arrived");
            self.deferred.push(Deferred::SendAcquisition(reply, Acquisition::Unavailable(error)));
            self.settle(index, Settlement::Release { ran: false }, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use campanile_core::Clock;

    use super::*;

    #[test]
    fn floor_rises_to_tokens_of_at_most_a_day_ahead() {
        const NOW: u64 = 1_800_000_000_000_000;
        const DAY: u64 = 86_400_000_000;
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(NOW);
        let mut state = KeeperState::new(Clock::from_fn(|| Duration::ZERO), 1);
        for (token, expected) in
            [(7, 7), (5, 7), (NOW + DAY, NOW + DAY), (NOW + DAY + 1, NOW + DAY)]
        {
            let token = FencingToken::new(token).unwrap();
            state
                .raise_floor(&Answer::new(now, Reply::Acquired { token, attempt: 1, steps: None }));
            assert_eq!(state.floor.get(), expected);
        }
        state.raise_floor(&Answer::new(now, Reply::Completed));
        assert_eq!(state.floor.get(), NOW + DAY);
    }
}
