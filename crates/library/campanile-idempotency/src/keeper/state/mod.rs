//! The keeper's state and its transitions. No method waits, and none calls the store.
//!
//! Everything that would run foreign code (a waker, a `Drop`, a log subscriber) is [`Deferred`]
//! until the mutex is released. Each step of the protocol has its own file.

mod acquire;
mod bounds;
mod cancel;
mod dispatch;
mod renew;
mod settle;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use campanile_core::{
    Answer, Clock, Details, FencingToken, Grant, LockControl, LostCause, Reply, StoreKey,
};
use slab::Slab;
use smallvec::SmallVec;
use tokio::sync::oneshot;

pub(super) use self::dispatch::BackgroundWork;
use super::calls::{Answers, Call, CallId, QueueName, Sent, Stage};
use super::deferred::Deferred;
use super::held::stopped_error;
use super::results::RecentResults;
use super::shared::Effects;
use super::slot::{CommandKind, CommandState, HeldGrant, Phase, Slot};
use super::timers::Timers;
use crate::store::StoreError;
use crate::telemetry::StoreMetrics;

/// The complete state of a keeper.
#[derive(Debug)]
pub(super) struct KeeperState {
    clock: Clock,
    max_batch: usize,
    slots: Slab<Slot>,
    by_key: HashMap<StoreKey, usize>,
    results: RecentResults,
    timers: Timers,
    queues: Queues,
    /// The calls in progress, of which there are only a few.
    calls: Vec<Call>,
    next_call: u64,
    /// The largest token seen from any key. This process is granted no smaller one.
    floor: FencingToken,
    /// The number of keys in doubt.
    in_doubt: usize,
    /// When it was last logged that a completion is not recorded, by the keeper's clock.
    pending_logged_at: Option<Duration>,
    /// The number of slots at which those of abandoned requests are removed.
    cleanup_at: usize,
    /// Whether new locks are refused.
    is_shutting_down: bool,
    /// Notified when no slot is left.
    shutdown_waiters: Vec<oneshot::Sender<()>>,
    /// Whether the background is gone, so that nothing is sent anymore.
    is_stopped: bool,
    /// When the background runs next.
    wake_at: Duration,
    /// Whether the background has to run before that.
    wake: bool,
    deferred: SmallVec<[Deferred; 2]>,
    metrics: StoreMetrics,
}

/// Slots with a command to send. An element may be stale: the slot's command was sent from an
/// earlier element, or the slot is gone.
#[derive(Debug, Default)]
struct Queues {
    callers: VecDeque<usize>,
    background: VecDeque<usize>,
    renewals: VecDeque<usize>,
}

impl Queues {
    fn of(&mut self, name: QueueName) -> &mut VecDeque<usize> {
        match name {
            QueueName::Callers => &mut self.callers,
            QueueName::Background => &mut self.background,
            QueueName::Renewals => &mut self.renewals,
        }
    }
}

impl KeeperState {
    pub(super) fn new(clock: Clock, max_batch: usize) -> Self {
        Self {
            clock,
            max_batch,
            slots: Slab::new(),
            by_key: HashMap::new(),
            results: RecentResults::default(),
            timers: Timers::default(),
            queues: Queues::default(),
            calls: Vec::new(),
            next_call: 0,
            floor: FencingToken::ZERO,
            in_doubt: 0,
            pending_logged_at: None,
            cleanup_at: 0,
            is_shutting_down: false,
            shutdown_waiters: Vec::new(),
            is_stopped: false,
            wake_at: Duration::MAX,
            wake: false,
            deferred: SmallVec::new(),
            metrics: StoreMetrics::new(),
        }
    }

    /// Stops granting locks, and notifies `done` when none is left.
    pub(super) fn shut_down(&mut self, done: oneshot::Sender<()>) {
        self.is_shutting_down = true;
        if !self.is_stopped {
            self.shutdown_waiters.push(done);
        }
    }

    pub(super) fn control(&self, key: &StoreKey, grant: Grant) -> Option<LockControl> {
        self.held(key, grant).map(|(_, held)| held.control.clone())
    }

    pub(super) fn kept_details(&self, key: &StoreKey, grant: Grant) -> Option<Details> {
        self.held(key, grant)?.0.kept_details()
    }

    fn held(&self, key: &StoreKey, grant: Grant) -> Option<(&Slot, &HeldGrant)> {
        let slot = &self.slots[*self.by_key.get(key)?];
        match &slot.phase {
            Phase::Held(held) if held.grant == grant => Some((slot, held)),
            _ => None,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Loses all locks and drops all requests, because nothing renews them anymore.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.shutdown_waiters.clear();
        self.queues = Queues::default();
        self.timers = Timers::default();
        for call in self.calls.drain(..) {
            if let Stage::InFlight { abort: Some(abort), .. } = call.stage {
                self.deferred.push(Deferred::Abort(abort));
            }
        }
        self.by_key.clear();
        for mut slot in self.slots.drain() {
            match &slot.phase {
                Phase::Held(held) if !held.is_lost => {
                    let (control, events) = (held.control.clone(), slot.events(held.grant.token));
                    self.deferred.push(Deferred::LoseLock(control, LostCause::Expired, events));
                }
                Phase::Settling(settling) if settling.is_completion() => {
                    let events = slot.events(settling.grant.token);
                    self.deferred.push(Deferred::LogCompletionFailed(events, stopped_error()));
                }
                _ => {}
            }
            if let Phase::Held(held) = &mut slot.phase {
                held.set_lost(LostCause::Expired, &slot.settings.metrics);
            }
            self.deferred.push(Deferred::DropSlot(Box::new(slot)));
        }
    }

    /// Takes the work that remains after a change, to be done without the mutex.
    pub(super) fn take_effects(&mut self) -> Effects {
        if self.slots.is_empty() && !self.shutdown_waiters.is_empty() {
            self.deferred.extend(self.shutdown_waiters.drain(..).map(Deferred::NotifyShutdown));
        }
        let start = self.start_call();
        let next = self.next_wake();
        if next < self.wake_at {
            self.wake_at = next;
            self.wake = true;
        }
        let wake = std::mem::take(&mut self.wake);
        Effects { deferred: std::mem::take(&mut self.deferred), start, wake }
    }

    /// Processes the answers to a call, unless the call was aborted.
    pub(super) fn handle_answers(&mut self, id: CallId, answers: Answers) {
        let Some(Call { stage: Stage::InFlight { sent, abort }, .. }) = self.remove_call(id) else {
            return;
        };
        // A call without this handle was answered when it was first polled, without any wait.
        if abort.is_some() {
            self.measure_call(&sent);
        }
        match answers {
            Ok(answers) => {
                for (sent, answer) in sent.into_iter().zip(answers) {
                    self.handle_command_answer(sent, answer);
                }
            }
            Err(reason) => self.fail_commands(sent, reason),
        }
    }

    fn measure_call(&self, sent: &[Sent]) {
        let Some(first) = sent.first() else {
            return;
        };
        let duration = self.clock.now().saturating_sub(first.at);
        let operations = sent.iter().map(|sent| sent.kind.operation());
        self.metrics.record_call(operations, duration.as_secs_f64());
    }

    fn fail_commands(&mut self, sent: SmallVec<[Sent; 1]>, reason: &'static str) {
        for sent in sent {
            self.handle_command_answer(sent, Err(StoreError::timeout(reason)));
        }
    }

    fn handle_command_answer(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        self.slots[sent.slot].command = CommandState::Idle;
        match &answer {
            Ok(Answer { reply: Reply::Corrupt, .. }) => self.metrics.count_error(&corrupt_error()),
            Ok(answer) => self.raise_floor(answer),
            Err(error) => self.metrics.count_error(error),
        }
        match sent.kind {
            CommandKind::Acquire => self.handle_acquire_answer(sent, answer),
            CommandKind::Renew => self.handle_renew_answer(sent, answer),
            CommandKind::RecordStep => self.handle_step_answer(sent.slot, answer),
            CommandKind::Settle => self.handle_settle_answer(sent.slot, answer),
            CommandKind::Cancel => self.handle_cancel_answer(sent.slot, answer),
        }
    }

    /// Removes a slot after the answer to its last command.
    fn remove_when_idle(&mut self, index: usize) {
        if self.slots[index].command != CommandState::InFlight {
            let mut slot = self.slots.remove(index);
            self.timers.set(index, &mut slot.timer, None);
            self.by_key.remove(&slot.key.store_key);
            slot.publish_result(&mut self.results);
            self.deferred.push(Deferred::DropSlot(Box::new(slot)));
        }
    }

    fn set_timer(&mut self, index: usize, at: Option<Duration>) {
        self.timers.set(index, &mut self.slots[index].timer, at);
    }
}

fn corrupt_error() -> StoreError {
    StoreError::unreadable(
        "the stored value is not an entry that this version can read; it was left unchanged",
    )
}

/// Checks whether the error is an answer as well: a repetition would not change it.
fn is_final(error: &StoreError) -> bool {
    !error.kind().is_outage()
}

/// The delay doubles from 50 ms to about 1.5 s, so that a store that is available again is soon
/// noticed.
fn retry_delay(tries: u32) -> Duration {
    Duration::from_millis(50 << tries.saturating_sub(1).min(5))
}

#[cfg(test)]
mod tests;
