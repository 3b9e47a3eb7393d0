//! Settling locks, which is repeated until the store answers.

use std::time::{Duration, SystemTime};

use campanile_core::limits::MAX_ERROR_BYTES;
use campanile_core::{Answer, Completion, Details, LostCause, Reply};
use tokio::sync::oneshot;

use super::{KeeperState, corrupt_error, is_final, retry_delay};
use crate::keeper::deferred::Deferred;
use crate::keeper::request::{SettleError, SettleResult, Settlement};
use crate::keeper::results::LocalAnswer;
use crate::keeper::slot::{CommandState, Phase, SettlingGrant};
use crate::store::StoreError;

/// How often it is logged that completions are not recorded.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl KeeperState {
    /// Settles the lock of a slot. If the keeper has stopped, `reply` is dropped.
    pub(in crate::keeper) fn settle(
        &mut self,
        index: usize,
        settlement: Settlement,
        reply: Option<oneshot::Sender<SettleResult>>,
    ) {
        let Some(slot) = self.slots.get_mut(index) else {
            return self.deferred.push(Deferred::DropSettlement(settlement, reply));
        };
        self.timers.set(index, &mut slot.timer, None);
        let Phase::Held(mut held) = std::mem::replace(&mut slot.phase, Phase::Ended) else {
            unreachable!("a held lock is settled once, and its slot exists until then");
        };
        // The holder may have noticed the loss before the background.
        if let Some(cause) = held.control.cause()
            && cause != LostCause::Ended
            && !held.is_lost
        {
            held.set_lost(cause, &slot.settings.metrics);
            let events = slot.events(held.grant.token);
            self.deferred.push(Deferred::LoseLock(held.control.clone(), cause, events));
        }
        let (grant, attempt) = (held.grant, held.attempt);
        self.deferred.extend(held.steps.take().map(Deferred::DropSteps));
        match settlement {
            Settlement::Expire => return self.remove_when_idle(index),
            Settlement::Completed(Completion { reply, at }) => {
                let attempts = attempt.into();
                let details = slot.kept_details();
                let (completed_at, age) = (at, Duration::ZERO);
                let completed =
                    LocalAnswer::Completed { reply, attempts, completed_at, details, age };
                slot.set_result(completed, &self.clock);
                return self.remove_when_idle(index);
            }
            _ => {}
        }
        slot.phase = Phase::Settling(SettlingGrant { grant, attempt, settlement, reply, tries: 0 });
        // A renewal that is only queued is dropped: its element in the queue is now stale.
        if slot.command != CommandState::InFlight {
            slot.command = CommandState::Idle;
            self.queue_command(index);
        }
    }

    pub(super) fn handle_settle_answer(
        &mut self,
        index: usize,
        answer: Result<Answer, StoreError>,
    ) {
        let slot = &mut self.slots[index];
        let details = slot.kept_details();
        let Phase::Settling(settling) = &mut slot.phase else {
            unreachable!("only a settling slot has sent a settlement");
        };
        let (is_completion, token) = (settling.is_completion(), settling.grant.token);
        let mut known = None;
        let result = match answer.map(|answer| (answer.reply, answer.now)) {
            Ok((Reply::Completed | Reply::Retrying | Reply::Released | Reply::GivenUp, at)) => {
                known = local_answer(settling, at, details, slot.settings.store_errors);
                Ok(())
            }
            Ok((Reply::Lost | Reply::Settled(_), _)) => {
                if let Some(kind) = settling.settlement.kind() {
                    slot.settings.metrics.settlements_refused.of(kind).increment(1);
                }
                Err(SettleError::Lost(settling.lost_error(&slot.key.idempotency_key)))
            }
            Ok((Reply::Corrupt, _)) => Err(SettleError::Store(corrupt_error())),
            Err(error) if is_final(&error) => Err(SettleError::Store(error)),
            answer => {
                // Only an answer decides. The command is unchanged and can be repeated, which keeps
                // the lock as well as a renewal would.
                self.in_doubt += usize::from(settling.tries == 0);
                settling.tries += 1;
                if settling.tries == 1 && is_completion {
                    slot.settings.metrics.completions_unrecorded.increment();
                }
                let now = self.clock.now();
                let at = now + retry_delay(settling.tries).min(slot.settings.ttl / 6);
                let logged_recently = |at| now < at + LOG_INTERVAL;
                if is_completion && !self.pending_logged_at.is_some_and(logged_recently) {
                    self.pending_logged_at = Some(now);
                    let pending = Deferred::LogCompletionPending(slot.events(token), answer.err());
                    self.deferred.push(pending);
                }
                return self.set_timer(index, Some(at));
            }
        };
        self.in_doubt -= usize::from(settling.tries > 0);
        if settling.is_unrecorded_completion() {
            slot.settings.metrics.completions_unrecorded.decrement();
        }
        let reply = settling.reply.take();
        if is_completion && let Err(error) = &result {
            let events = slot.events(token);
            self.deferred.push(match error {
                SettleError::Lost(_) => Deferred::LogCompletionRefused(events),
                SettleError::Store(error) => Deferred::LogCompletionFailed(events, error.clone()),
            });
        }
        if let Some(reply) = reply {
            self.deferred.push(Deferred::SendSettleResult(reply, result));
        }
        slot.phase = Phase::Ended;
        if let Some(known) = known {
            slot.set_result(known, &self.clock);
        }
        self.remove_when_idle(index);
    }
}

/// Finds what the entry now means for other requests, if it is known here.
fn local_answer(
    settling: &SettlingGrant,
    at: SystemTime,
    details: Option<Details>,
    stores_errors: bool,
) -> Option<LocalAnswer> {
    let attempts = settling.attempt.into();
    match &settling.settlement {
        // The answer to a repeated completion does not contain the time of the first.
        Settlement::Complete { reply } if settling.tries == 0 => {
            let (reply, completed_at, age) = (reply.clone(), at, Duration::ZERO);
            Some(LocalAnswer::Completed { reply, attempts, completed_at, details, age })
        }
        // The store keeps the previous text for an empty reason, and truncates a long one.
        Settlement::GiveUp { reason }
            if stores_errors && (1..=MAX_ERROR_BYTES).contains(&reason.len()) =>
        {
            Some(LocalAnswer::Failed { attempts, reason: Some(reason.clone()) })
        }
        Settlement::Fail { delay, .. } => {
            Some(LocalAnswer::BackingOff { retry_after: *delay, attempts })
        }
        _ => None,
    }
}
