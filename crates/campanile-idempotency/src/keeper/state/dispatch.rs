//! Decides when a command is sent, and where the call is made.

use std::time::Duration;

use futures_util::future::{AbortHandle, AbortRegistration};
use smallvec::SmallVec;

use super::State;
use crate::keeper::calls::{Batch, CALL_LIMIT, Call, CallId, QueueName, Sent, Stage, call_limit};
use crate::keeper::deferred::Deferred;
use crate::keeper::shared::Start;
use crate::keeper::slot::{CommandState, Phase};

/// The maximum number of calls in flight per queue.
const MAX_CALLS: usize = 4;

/// If the background is late by this much, it was suspended, possibly with the whole process.
const LATE: Duration = Duration::from_millis(100);

/// The work that is due in the background.
pub(in crate::keeper) struct Due {
    /// Calls to start.
    pub(in crate::keeper) batches: Vec<(Batch, AbortRegistration)>,
    /// When the background has to run next, unless it is woken earlier.
    pub(in crate::keeper) alarm: Duration,
    /// Whether no slot is left.
    pub(in crate::keeper) is_idle: bool,
}

impl State {
    /// Queues the slot's command. If the slot already has a command, its answer continues the slot.
    pub(super) fn queue(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.command != CommandState::Idle {
            return;
        }
        slot.command = CommandState::Queued;
        let ttl = slot.terms.ttl;
        match &slot.phase {
            Phase::Held(_) => self.push(QueueName::Renewals, index),
            // The first try failed, possibly because of the caller's runtime.
            Phase::Settling(settling) if settling.tries > 0 => {
                self.push(QueueName::Background, index);
            }
            Phase::Cancelling { .. } => self.push(QueueName::Background, index),
            _ => {
                self.queues.callers.push_back(index);
                let gathering = self.calls.iter_mut().find_map(|call| match call.stage {
                    Stage::Gathering { since } => Some((since, &mut call.limit)),
                    Stage::InFlight { .. } => None,
                });
                if let Some((since, limit)) = gathering {
                    *limit = since.saturating_add(call_limit(ttl)).min(*limit);
                }
            }
        }
    }

    fn push(&mut self, queue: QueueName, index: usize) {
        self.queues.of(queue).push_back(index);
        self.wake = true;
    }

    /// Starts a call on the caller's runtime if one is due: immediately for a full batch, otherwise
    /// with a task that first lets other ready tasks run.
    pub(super) fn start(&mut self) -> Option<Start> {
        let waiting = self.queues.callers.len();
        if waiting == 0 {
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
        if waiting >= self.max_batch {
            let id = self.new_call_id();
            return self.take(QueueName::Callers, id, None).map(Start::Call);
        }
        if is_gathering || waiting < worth_a_call(in_flight, self.max_batch) {
            return None;
        }
        let since = self.clock.now();
        let first = self.queues.callers.front().and_then(|index| self.slots.get(*index));
        let limit = since + first.map_or(CALL_LIMIT, |slot| call_limit(slot.terms.ttl));
        let id = self.new_call_id();
        let (queue, stage) = (QueueName::Callers, Stage::Gathering { since });
        self.calls.push(Call { id, queue, stage, limit });
        Some(Start::Gather(id))
    }

    /// Returns the batch of a call after other ready tasks have run.
    pub(in crate::keeper) fn gathered(&mut self, id: CallId, abort: AbortHandle) -> Option<Batch> {
        // The background may have taken over the commands.
        self.remove_call(id)?;
        self.take(QueueName::Callers, id, Some(abort))
    }

    /// Records that a call was not answered immediately.
    pub(in crate::keeper) fn call_pending(&mut self, id: CallId, handle: AbortHandle) {
        let call = self.calls.iter_mut().find(|call| call.id == id);
        match call.map(|call| &mut call.stage) {
            Some(Stage::InFlight { abort, .. }) => *abort = Some(handle),
            _ => self.deferred.push(Deferred::Abort(handle)),
        }
    }

    /// Hands a call to the background, with the same nonces, because it has no runtime or has lost
    /// it.
    pub(in crate::keeper) fn call_dropped(&mut self, id: CallId) {
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
                self.push(QueueName::Background, index);
            }
        }
        self.take_over();
    }

    /// Lets the background send what the callers' runtimes have not sent.
    fn take_over(&mut self) {
        self.wake |= !self.queues.callers.is_empty();
        self.queues.background.append(&mut self.queues.callers);
    }

    /// Returns the work that is due in the background.
    pub(in crate::keeper) fn due(&mut self) -> Due {
        let now = self.clock.now();
        let gave_up = self.give_up(now);
        while let Some(index) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            slot.timer = None;
            match &slot.phase {
                Phase::Held(_) => self.check(index),
                _ => self.queue(index),
            }
        }
        let mut batches = Vec::new();
        if gave_up {
            // The commands are repeated after the aborted calls have ended.
            (self.alarm, self.wake) = (now, false);
            return Due { batches, alarm: now, is_idle: false };
        }
        for queue in [QueueName::Renewals, QueueName::Background] {
            let in_flight = self.calls.iter().filter(|call| call.queue == queue).count();
            for _ in in_flight..MAX_CALLS {
                let (abort, registration) = AbortHandle::new_pair();
                let id = self.new_call_id();
                let Some(batch) = self.take(queue, id, Some(abort)) else {
                    break;
                };
                batches.push((batch, registration));
            }
        }
        (self.alarm, self.wake) = (self.next_alarm(), false);
        Due { batches, alarm: self.alarm, is_idle: self.slots.is_empty() }
    }

    /// Aborts the calls that have taken too long, and returns whether there were any. If such a
    /// call ran on a caller's runtime, which may be blocked, the background takes over the commands
    /// queued for it.
    fn give_up(&mut self, now: Duration) -> bool {
        let mut gave_up = false;
        let is_late = now.saturating_sub(self.alarm) > LATE;
        while let Some(place) = self.calls.iter().position(|call| call.limit <= now) {
            if is_late {
                // The answers may already have arrived, so allow some time to read them.
                self.calls[place].limit = now + LATE;
                continue;
            }
            let call = self.calls.swap_remove(place);
            if let Stage::InFlight { sent, abort } = call.stage {
                self.deferred.extend(abort.map(Deferred::Abort));
                self.failed(sent, "the call exceeded the lock keeper's time limit");
            }
            if call.queue == QueueName::Callers {
                self.take_over();
            }
            gave_up = true;
        }
        gave_up
    }

    /// Takes the next batch from a queue, and registers the call.
    fn take(&mut self, queue: QueueName, id: CallId, abort: Option<AbortHandle>) -> Option<Batch> {
        let at = self.clock.now();
        let room = self.queues.of(queue).len().min(self.max_batch);
        let mut sent = SmallVec::with_capacity(room);
        let mut commands = SmallVec::with_capacity(room);
        let mut limit = CALL_LIMIT;
        while sent.len() < self.max_batch
            && let Some(index) = self.queues.of(queue).pop_front()
        {
            let slot = self.slots.get_mut(index);
            let Some(slot) = slot.filter(|slot| slot.command == CommandState::Queued) else {
                continue;
            };
            let Some((what, command)) = slot.next_command(self.floor) else {
                slot.command = CommandState::Idle;
                // A lost lock keeps its slot until its holder ends.
                if !matches!(slot.phase, Phase::Held(_)) {
                    self.end_when_idle(index);
                }
                continue;
            };
            slot.command = CommandState::InFlight;
            limit = limit.min(call_limit(slot.terms.ttl));
            sent.push(Sent { slot: index, what, at });
            commands.push(command);
        }
        if sent.is_empty() {
            return None;
        }
        let stage = Stage::InFlight { sent, abort };
        self.calls.push(Call { id, queue, stage, limit: at + limit });
        Some(Batch { id, queue, commands })
    }

    /// Returns when the background has to run next.
    pub(super) fn next_alarm(&self) -> Duration {
        let limits = self.calls.iter().map(|call| call.limit);
        limits.chain(self.timers.next()).min().unwrap_or(Duration::MAX)
    }

    pub(super) fn remove_call(&mut self, id: CallId) -> Option<Call> {
        let place = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.swap_remove(place))
    }

    fn new_call_id(&mut self) -> CallId {
        self.next_call += 1;
        CallId(self.next_call)
    }
}

/// Returns how many commands must be queued to justify another call in addition to those in flight,
/// for a store that accepts `max_batch` commands at once.
///
/// The first two calls start with a single command, so that a few partitions, each waiting for one
/// record, do not wait for each other. The third and fourth need more: small batches cost the store
/// several times as much, and a store that accepts large batches distributes them among more
/// servers.
fn worth_a_call(in_flight: usize, max_batch: usize) -> usize {
    let worth = [1, max_batch / 64, max_batch / 8, max_batch / 4];
    worth[in_flight.min(MAX_CALLS - 1)].max(1)
}
