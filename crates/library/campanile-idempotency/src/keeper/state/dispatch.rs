//! Decides when a command is sent, and where the call is made.

use std::time::Duration;

use futures_util::future::{AbortHandle, AbortRegistration};
use smallvec::SmallVec;

use super::KeeperState;
use crate::keeper::calls::{
    Batch, CALL_TIMEOUT, Call, CallId, QueueName, Sent, Stage, call_timeout,
};
use crate::keeper::deferred::Deferred;
use crate::keeper::shared::StartCall;
use crate::keeper::slot::{CommandState, Phase};

/// The maximum number of calls in flight per queue.
const MAX_CALLS: usize = 4;

/// If the background is late by this much, it was suspended, possibly with the whole process.
const SUSPENSION_GRACE: Duration = Duration::from_millis(100);

/// The work that is due in the background.
pub(in crate::keeper) struct BackgroundWork {
    /// Calls to start.
    pub(in crate::keeper) batches: Vec<(Batch, AbortRegistration)>,
    /// When the background has to run next, unless it is woken earlier.
    pub(in crate::keeper) wake_at: Duration,
    /// Whether no slot is left.
    pub(in crate::keeper) is_idle: bool,
}

impl KeeperState {
    /// Queues the slot's command. If the slot already has a command, its answer continues the slot.
    pub(super) fn queue_command(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.command != CommandState::Idle {
            return;
        }
        slot.command = CommandState::Queued;
        let ttl = slot.settings.ttl;
        match &slot.phase {
            Phase::Held(held) => match held.due_step(self.clock.now()) {
                None => self.enqueue(QueueName::Renewals, index),
                // The handler waits for it.
                Some(step) if step.tries == 0 => self.queues.callers.push_back(index),
                Some(_) => self.enqueue(QueueName::Background, index),
            },
            // The first try failed, possibly because of the caller's runtime.
            Phase::Settling(settling) if settling.tries > 0 => {
                self.enqueue(QueueName::Background, index);
            }
            Phase::Cancelling { .. } => self.enqueue(QueueName::Background, index),
            _ => {
                self.queues.callers.push_back(index);
                let gathering = self.calls.iter_mut().find_map(|call| match call.stage {
                    Stage::Gathering { started_at } => Some((started_at, &mut call.deadline)),
                    Stage::InFlight { .. } => None,
                });
                if let Some((started_at, deadline)) = gathering {
                    *deadline = started_at.saturating_add(call_timeout(ttl)).min(*deadline);
                }
            }
        }
    }

    pub(super) fn enqueue(&mut self, queue: QueueName, index: usize) {
        self.queues.of(queue).push_back(index);
        self.wake = true;
    }

    /// Starts a call on the caller's runtime if one is due: immediately for a full batch, otherwise
    /// with a task that first lets other ready tasks run.
    pub(super) fn start_call(&mut self) -> Option<StartCall> {
        let queued = self.queues.callers.len();
        if queued == 0 {
            return None;
        }
        let (mut in_flight, mut is_gathering) = (0, false);
        for call in self.calls.iter().filter(|call| call.queue == QueueName::Callers) {
            match &call.stage {
                Stage::Gathering { .. } => is_gathering = true,
                // A call that is being polled for the first time may be answered by that poll.
                Stage::InFlight { abort, .. } => in_flight += usize::from(abort.is_some()),
            }
        }
        if in_flight + usize::from(is_gathering) >= MAX_CALLS {
            return None;
        }
        if queued >= self.max_batch {
            let id = self.new_call_id();
            return self.take_batch(QueueName::Callers, id, None).map(StartCall::Call);
        }
        if is_gathering || queued < min_batch_for_call(in_flight, self.max_batch) {
            return None;
        }
        let started_at = self.clock.now();
        let oldest = self.queues.callers.front().and_then(|index| self.slots.get(*index));
        let deadline =
            started_at + oldest.map_or(CALL_TIMEOUT, |slot| call_timeout(slot.settings.ttl));
        let id = self.new_call_id();
        let (queue, stage) = (QueueName::Callers, Stage::Gathering { started_at });
        self.calls.push(Call { id, queue, stage, deadline });
        Some(StartCall::Gather(id))
    }

    /// Takes the batch of a call after other ready tasks have run.
    pub(in crate::keeper) fn take_gathered_batch(
        &mut self,
        id: CallId,
        abort: AbortHandle,
    ) -> Option<Batch> {
        // The background may have taken over the commands.
        self.remove_call(id)?;
        self.take_batch(QueueName::Callers, id, Some(abort))
    }

    /// Records that a call was not answered immediately.
    pub(in crate::keeper) fn set_call_pending(&mut self, id: CallId, handle: AbortHandle) {
        let call = self.calls.iter_mut().find(|call| call.id == id);
        match call.map(|call| &mut call.stage) {
            Some(Stage::InFlight { abort, .. }) => *abort = Some(handle),
            _ => self.deferred.push(Deferred::Abort(handle)),
        }
    }

    /// Hands a call to the background, with the same nonces, because it has no runtime or has lost
    /// it.
    pub(in crate::keeper) fn requeue_dropped_call(&mut self, id: CallId) {
        let Some(call) = self.remove_call(id) else {
            return;
        };
        if let Stage::InFlight { sent, .. } = call.stage {
            for Sent { slot: index, .. } in sent {
                let slot = &mut self.slots[index];
                slot.command = CommandState::Queued;
                if let Phase::Acquiring { was_sent, .. } = &mut slot.phase {
                    *was_sent = true;
                }
                self.enqueue(QueueName::Background, index);
            }
        }
        self.requeue_to_background();
    }

    /// Lets the background send what the callers' runtimes have not sent.
    fn requeue_to_background(&mut self) {
        self.wake |= !self.queues.callers.is_empty();
        self.queues.background.append(&mut self.queues.callers);
    }

    pub(in crate::keeper) fn take_background_work(&mut self) -> BackgroundWork {
        let now = self.clock.now();
        let aborted_any = self.abort_overdue_calls(now);
        while let Some(index) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            slot.timer = None;
            match &slot.phase {
                Phase::Held(_) => self.check_lock(index),
                _ => self.queue_command(index),
            }
        }
        let mut batches = Vec::new();
        if aborted_any {
            // The commands are repeated after the aborted calls have ended.
            (self.wake_at, self.wake) = (now, false);
            return BackgroundWork { batches, wake_at: now, is_idle: false };
        }
        for queue in [QueueName::Renewals, QueueName::Background] {
            let in_flight = self.calls.iter().filter(|call| call.queue == queue).count();
            for _ in in_flight..MAX_CALLS {
                let (abort, registration) = AbortHandle::new_pair();
                let id = self.new_call_id();
                let Some(batch) = self.take_batch(queue, id, Some(abort)) else {
                    break;
                };
                batches.push((batch, registration));
            }
        }
        (self.wake_at, self.wake) = (self.next_wake(), false);
        BackgroundWork { batches, wake_at: self.wake_at, is_idle: self.slots.is_empty() }
    }

    /// Aborts the calls that have taken too long, and reports whether there were any. If such a
    /// call ran on a caller's runtime, which may be blocked, the background takes over the commands
    /// queued for it.
    fn abort_overdue_calls(&mut self, now: Duration) -> bool {
        let mut aborted_any = false;
        let is_late = now.saturating_sub(self.wake_at) > SUSPENSION_GRACE;
        while let Some(position) = self.calls.iter().position(|call| call.deadline <= now) {
            if is_late {
                // The answers may already have arrived, so allow some time to read them.
                self.calls[position].deadline = now + SUSPENSION_GRACE;
                continue;
            }
            let call = self.calls.swap_remove(position);
            if let Stage::InFlight { sent, abort } = call.stage {
                self.measure_call(&sent);
                self.deferred.extend(abort.map(Deferred::Abort));
                self.fail_commands(sent, "the call exceeded the lock keeper's time limit");
            }
            if call.queue == QueueName::Callers {
                self.requeue_to_background();
            }
            aborted_any = true;
        }
        aborted_any
    }

    /// Takes the next batch from a queue, and registers the call.
    fn take_batch(
        &mut self,
        queue: QueueName,
        id: CallId,
        abort: Option<AbortHandle>,
    ) -> Option<Batch> {
        let at = self.clock.now();
        let capacity = self.queues.of(queue).len().min(self.max_batch);
        let mut sent = SmallVec::with_capacity(capacity);
        let mut commands = SmallVec::with_capacity(capacity);
        let mut timeout = CALL_TIMEOUT;
        while sent.len() < self.max_batch
            && let Some(index) = self.queues.of(queue).pop_front()
        {
            let slot = self.slots.get_mut(index);
            let Some(slot) = slot.filter(|slot| slot.command == CommandState::Queued) else {
                continue;
            };
            let Some((kind, command)) = slot.next_command(self.floor, at) else {
                slot.command = CommandState::Idle;
                // A lost lock keeps its slot until its holder ends.
                if !matches!(slot.phase, Phase::Held(_)) {
                    self.remove_when_idle(index);
                }
                continue;
            };
            slot.command = CommandState::InFlight;
            timeout = timeout.min(call_timeout(slot.settings.ttl));
            sent.push(Sent { slot: index, kind, at });
            commands.push(command);
        }
        if sent.is_empty() {
            return None;
        }
        let stage = Stage::InFlight { sent, abort };
        self.calls.push(Call { id, queue, stage, deadline: at + timeout });
        Some(Batch { id, queue, commands })
    }

    pub(super) fn next_wake(&self) -> Duration {
        let deadlines = self.calls.iter().map(|call| call.deadline);
        deadlines.chain(self.timers.next()).min().unwrap_or(Duration::MAX)
    }

    pub(super) fn remove_call(&mut self, id: CallId) -> Option<Call> {
        let position = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.swap_remove(position))
    }

    fn new_call_id(&mut self) -> CallId {
        self.next_call += 1;
        CallId(self.next_call)
    }
}

/// Computes how many commands must be queued to justify another call in addition to those in
/// flight, of which there are fewer than [`MAX_CALLS`], for a store that accepts `max_batch` commands
/// at once.
///
/// The first two calls start with a single command, so that a few partitions, each waiting for one
/// record, do not wait for each other. The third and fourth need more: small batches cost the store
/// several times as much, and a store that accepts large batches distributes them among more
/// servers.
fn min_batch_for_call(in_flight: usize, max_batch: usize) -> usize {
    let thresholds: [_; MAX_CALLS] = [1, max_batch / 64, max_batch / 8, max_batch / 4];
    thresholds[in_flight].max(1)
}
