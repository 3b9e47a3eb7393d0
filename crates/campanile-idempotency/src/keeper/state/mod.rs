//! The keeper's task: the only one that talks to the store. What it does in each step has a file of
//! its own.

mod acquire;
mod bounds;
mod cancel;
mod renew;
mod settle;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use campanile_core::{Clock, FencingToken, LostCause, StoreKey};
use slab::Slab;
use tokio::sync::{mpsc, oneshot};

use super::alarm::Alarm;
use super::calls::{CALL_LIMIT, Calls, Done, Lane, Sent, call_limit};
use super::ends::Ends;
use super::request::Message;
use super::slot::{Phase, Slot, Way, What};
use super::timers::Timers;
use crate::store::{Store, StoreError, StoreErrorKind};

/// How many messages are taken in at once.
const INBOX: usize = 256;

/// After all handles are gone, what is left is tried for so long.
const CLOSING: Duration = Duration::from_secs(30);

/// How many commands must wait before another call is begun beside those in flight, of a store that
/// takes so many at once. The first goes at once; what arrives meanwhile travels together, and the more
/// is in flight, the larger a batch must be to be worth a further call. Measured: small batches cost the
/// store several times as much, and one that takes more at once splits them among more servers.
fn worth_a_call(most: usize) -> [usize; 4] {
    [1, most / 8, most / 4, most / 2].map(|worth| worth.max(1))
}

/// How many calls with renewals are begun: none waits for another.
const RENEWAL_CALLS: usize = 4;

pub(super) struct Task<S> {
    clock: Clock,
    /// Weak, so that the channel closes when all handles and locks are gone.
    messages: mpsc::WeakUnboundedSender<Message>,
    received: mpsc::UnboundedReceiver<Message>,
    calls: Calls<S>,
    slots: Slab<Slot>,
    by_key: HashMap<StoreKey, usize>,
    ends: Ends,
    timers: Timers,
    commands: Queue,
    renewals: Queue,
    /// The largest token seen from any key: nobody is granted less than this process has seen.
    floor: FencingToken,
    /// How many keys are in doubt.
    in_doubt: usize,
    /// With so many slots, those that nobody waits for are swept out.
    sweep_at: usize,
    /// No new locks are taken.
    stopping: bool,
    /// Who wants to know when none is left.
    shutdown: Vec<oneshot::Sender<()>>,
}

/// Slots whose command waits to be sent.
#[derive(Default)]
struct Queue {
    slots: VecDeque<usize>,
    calls: usize,
}

impl<S: Store> Task<S> {
    pub(super) fn new(
        store: S,
        clock: Clock,
        messages: mpsc::WeakUnboundedSender<Message>,
        received: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        Self {
            clock,
            messages,
            received,
            calls: Calls::new(store),
            slots: Slab::new(),
            by_key: HashMap::new(),
            ends: Ends::default(),
            timers: Timers::default(),
            commands: Queue::default(),
            renewals: Queue::default(),
            floor: FencingToken::ZERO,
            in_doubt: 0,
            sweep_at: 0,
            stopping: false,
            shutdown: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut inbox = Vec::with_capacity(INBOX);
        let mut closing = None;
        let mut alarm = Alarm::new();
        loop {
            self.send();
            if self.slots.is_empty() {
                for done in self.shutdown.drain(..) {
                    let _ = done.send(());
                }
                if closing.is_some() {
                    return;
                }
            }
            let now = self.clock.now();
            if closing.is_some_and(|end| now >= end) {
                tracing::warn!(left = self.slots.len(), "the lock keeper ends unsettled");
                return;
            }
            let times = [self.timers.next(), self.calls.next_limit(), closing];
            let next = times.into_iter().flatten().min();
            tokio::select! {
                count = self.received.recv_many(&mut inbox, INBOX), if closing.is_none() => {
                    if count == 0 {
                        closing = Some(self.clock.now() + CLOSING);
                    }
                    inbox.drain(..).for_each(|message| self.receive(message));
                }
                done = self.calls.next() => {
                    self.answered(done);
                    self.answers();
                }
                () = alarm.wait(next, &self.clock) => {
                    // What was answered in time is not given up, although we are late ourselves.
                    self.answers();
                    self.fire();
                }
            }
        }
    }

    /// Takes in what is answered already.
    fn answers(&mut self) {
        while let Some(done) = self.calls.next_now() {
            self.answered(done);
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Acquire(acquire) => self.acquire(acquire),
            Message::Settle(settle) => self.settle(settle),
            Message::Shutdown(done) => {
                self.stopping = true;
                self.shutdown.push(done);
            }
        }
    }

    /// Queues the slot's command, unless one is on its way; its answer will bring us back.
    fn want(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.way == Way::Idle {
            slot.way = Way::Queued;
            let renewal = matches!(slot.phase, Phase::Held(_));
            let queue = if renewal { &mut self.renewals } else { &mut self.commands };
            queue.slots.push_back(index);
        }
    }

    fn send(&mut self) {
        while self.renewals.calls < RENEWAL_CALLS && !self.renewals.slots.is_empty() {
            self.send_batch(Lane::Renewals);
        }
        let worth_a_call = worth_a_call(self.calls.max_batch());
        while let Some(&worth) = worth_a_call.get(self.commands.calls)
            && self.commands.slots.len() >= worth
        {
            self.send_batch(Lane::Commands);
        }
    }

    fn send_batch(&mut self, lane: Lane) {
        let most = self.calls.max_batch();
        let at = self.clock.now();
        let room = self.queue(lane).slots.len().min(most);
        let (mut sent, mut commands) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut limit = CALL_LIMIT;
        while sent.len() < most
            && let Some(index) = self.queue(lane).slots.pop_front()
        {
            // A place may be stale: the slot has been sent from a later place, or is gone.
            let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.way == Way::Queued)
            else {
                continue;
            };
            let Some((what, command)) = slot.command(self.floor) else {
                slot.way = Way::Idle;
                // A lock that is lost has its slot until its holder ends.
                if !matches!(slot.phase, Phase::Held(_)) {
                    self.end_when_idle(index);
                }
                continue;
            };
            slot.way = Way::Sent;
            limit = limit.min(call_limit(slot.terms.ttl));
            sent.push(Sent { slot: index, what, at });
            commands.push(command);
        }
        if !sent.is_empty() {
            self.queue(lane).calls += 1;
            self.calls.send(lane, sent, commands, at + limit);
        }
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::Commands => &mut self.commands,
            Lane::Renewals => &mut self.renewals,
        }
    }

    fn answered(&mut self, done: Done) {
        self.queue(done.lane).calls -= 1;
        for (sent, answer) in done.sent.into_iter().zip(done.answers) {
            self.slots[sent.slot].way = Way::Idle;
            if let Ok(answer) = &answer {
                self.saw(answer);
            }
            match sent.what {
                What::Acquire => self.acquire_answered(sent, answer),
                What::Renew => self.renew_answered(sent, answer),
                What::Settle => self.settle_answered(sent.slot, answer),
                What::Cancel => self.cancel_answered(sent.slot, answer),
            }
        }
    }

    fn fire(&mut self) {
        let now = self.clock.now();
        self.calls.give_up(now);
        while let Some(index) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            slot.timer = None;
            match &slot.phase {
                Phase::Held(_) => self.look(index),
                _ => self.want(index),
            }
        }
    }

    /// Removes a slot whose last command is answered.
    fn end_when_idle(&mut self, index: usize) {
        if self.slots[index].way != Way::Sent {
            let mut slot = self.slots.remove(index);
            self.timers.set(index, &mut slot.timer, None);
            self.by_key.remove(&slot.key);
            slot.tell(&mut self.ends);
        }
    }
}

impl<S> Drop for Task<S> {
    fn drop(&mut self) {
        for (_, slot) in &self.slots {
            if let Phase::Held(held) = &slot.phase {
                held.lock.lose(LostCause::Expired);
            }
        }
    }
}

fn corrupt() -> StoreError {
    StoreError::unreadable(
        "what is stored under the key is no entry of this version; it was left as it is",
    )
}

fn is_unreadable(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Unreadable
}

/// 50 ms, doubling to about a second and a half: a store that is back should be noticed soon.
fn repeat_after(tries: u32) -> Duration {
    Duration::from_millis(50 << tries.saturating_sub(1).min(5))
}
