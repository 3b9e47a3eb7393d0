//! Recording the steps of handlers.

use bytes::Bytes;
use campanile_core::{Answer, Grant, LostCause, Reply, State as EntryState, StoreKey};
use tokio::sync::oneshot;

use super::{KeeperState, corrupt_error, is_final, retry_delay};
use crate::keeper::deferred::Deferred;
use crate::keeper::slot::Phase;
use crate::keeper::steps::{PendingStep, RecordError, StepResult, longest_delay};
use crate::store::StoreError;

impl KeeperState {
    /// Records a step under a lock, if the lock is still held.
    pub(in crate::keeper) fn record_step(
        &mut self,
        (key, grant): (&StoreKey, Grant),
        name: Box<str>,
        result: Bytes,
        reply: oneshot::Sender<StepResult>,
    ) {
        let now = self.clock.now();
        if let Some(index) = self.by_key.get(key).copied()
            && let Phase::Held(held) = &mut self.slots[index].phase
            && held.grant == grant
        {
            held.steps.push(PendingStep::new(name, result, reply, now));
            return self.check_lock(index);
        }
        self.deferred.push(Deferred::SendStepResult(reply, Err(RecordError::Lost)));
    }

    pub(super) fn handle_step_answer(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let ttl = slot.settings.ttl;
        let Phase::Held(held) = &mut slot.phase else {
            // The lock was settled in the meantime, without this answer. If the settlement needs a
            // command, it is next.
            return match slot.phase {
                Phase::Ended => self.remove_when_idle(index),
                _ => self.queue_command(index),
            };
        };
        let deadline = held.control.deadline();
        let step = held.steps.front_mut().expect("removed only after its answer");
        let result = match answer.map(|answer| answer.reply) {
            Ok(Reply::StepRecorded) => Ok(()),
            Ok(Reply::StepTooLarge) => Err(RecordError::TooLarge),
            // Completed by this grant, together with the effect of its handler, which is about to
            // report it.
            Ok(Reply::Settled(EntryState::Completed)) => Err(RecordError::Lost),
            Ok(Reply::Lost | Reply::Settled(_)) => {
                self.lose_lock(index, LostCause::Superseded);
                return self.answer_step(index, Err(RecordError::Lost));
            }
            Ok(Reply::Corrupt) => Err(RecordError::Store(corrupt_error())),
            Ok(_) => {
                let error = StoreError::unreadable("unexpected reply to a recorded step");
                Err(RecordError::Store(error))
            }
            Err(error) if is_final(&error) => Err(RecordError::Store(error)),
            Err(error) if !step.has_time(now, ttl, deadline) => {
                // The steps behind it wait for the same store.
                while let Some(step) = held.steps.pop_if(|it| !it.has_time(now, ttl, deadline)) {
                    let result = Err(RecordError::Store(error.clone()));
                    self.deferred.push(Deferred::SendStepResult(step.reply, result));
                }
                return self.check_lock(index);
            }
            Err(_) => {
                // The first result of a name is kept, so the command can be repeated.
                step.tries += 1;
                step.send_at = now + retry_delay(step.tries).min(longest_delay(ttl));
                return self.check_lock(index);
            }
        };
        self.answer_step(index, result);
        self.check_lock(index);
    }

    /// Answers the first pending step.
    fn answer_step(&mut self, index: usize, result: StepResult) {
        if let Phase::Held(held) = &mut self.slots[index].phase
            && let Some(step) = held.steps.pop()
        {
            self.deferred.push(Deferred::SendStepResult(step.reply, result));
        }
    }
}
