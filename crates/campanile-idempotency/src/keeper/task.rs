//! The keeper's task: the only one that talks to the store.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use campanile_core::{Answer, Clock, FencingToken, LostCause, Reply, State, StoreKey};
use slab::Slab;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::HeldLock;
use super::calls::{CALL_LIMIT, Calls, Done, Lane, Sent};
use super::message::{Acquire, Acquisition, Message, NotSettled, Settle, Settlement};
use super::slot::{Held, Phase, Settling, Slot, Way, What, draw_owner};
use super::timers::Timers;
use crate::store::{Store, StoreError, StoreErrorKind};

/// How many messages are taken in at once.
const INBOX: usize = 256;

/// After all handles are gone, what is left is tried for so long.
const CLOSING: Duration = Duration::from_secs(30);

/// An acquire in doubt is cancelled for at least so long; after that the attempt stays counted.
const CANCEL_FOR: Duration = Duration::from_secs(60);

/// How many commands must wait before another call is begun beside those in flight. The first goes
/// at once; what arrives meanwhile travels together, and the more is in flight, the larger a batch
/// must be to be worth a further call. Measured: small batches cost the store several times as much.
const WORTH_A_CALL: [usize; 4] = [1, 8, 16, 32];

/// As [`WORTH_A_CALL`], for renewals: none waits for another.
const RENEWAL_CALLS: usize = 4;

pub(super) struct Task<S> {
    clock: Clock,
    /// Weak, so that the channel closes when all handles and locks are gone.
    messages: mpsc::WeakUnboundedSender<Message>,
    received: mpsc::UnboundedReceiver<Message>,
    calls: Calls<S>,
    slots: Slab<Slot>,
    by_key: HashMap<StoreKey, usize>,
    timers: Timers,
    commands: Queue,
    renewals: Queue,
    /// The largest token seen from any key: nobody is granted less than this process has seen.
    floor: FencingToken,
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
            timers: Timers::default(),
            commands: Queue::default(),
            renewals: Queue::default(),
            floor: FencingToken::ZERO,
            stopping: false,
            shutdown: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut inbox = Vec::with_capacity(INBOX);
        let mut closing = None;
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
            let timer = self.timers.next().into_iter().chain(closing).min();
            let wait = timer.map_or(Duration::MAX, |at| at.saturating_sub(now));
            tokio::select! {
                count = self.received.recv_many(&mut inbox, INBOX), if closing.is_none() => {
                    if count == 0 {
                        closing = Some(self.clock.now() + CLOSING);
                    }
                    inbox.drain(..).for_each(|message| self.receive(message));
                }
                done = self.calls.next() => {
                    self.answered(done);
                    while let Some(done) = self.calls.next_now() {
                        self.answered(done);
                    }
                }
                () = sleep(wait), if timer.is_some() => self.fire(),
            }
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

    fn acquire(&mut self, acquire: Acquire) {
        if self.stopping {
            let _ = acquire.reply.send(Acquisition::ShuttingDown);
            return;
        }
        let Some(&index) = self.by_key.get(&acquire.key) else {
            let key = acquire.key.clone();
            let index = self.slots.insert(Slot::new(acquire));
            self.by_key.insert(key, index);
            self.want(index);
            return;
        };
        let slot = &mut self.slots[index];
        // The grant in doubt was for the slot's payload; another one waits until it is cancelled.
        if let Phase::Cancelling { .. } = slot.phase
            && slot.fingerprint == acquire.fingerprint
        {
            slot.adopt(acquire);
            self.timers.set(index, &mut slot.timer, None);
            self.want(index);
        } else {
            let retry_after = slot.terms.ttl;
            let settled = Some(slot.settled());
            let _ = acquire.reply.send(Acquisition::Locked {
                retry_after,
                settled,
            });
        }
    }

    fn settle(&mut self, settle: Settle) {
        let Settle {
            slot: index,
            settlement,
            reply,
        } = settle;
        let slot = &mut self.slots[index];
        self.timers.set(index, &mut slot.timer, None);
        let Phase::Held(held) = std::mem::replace(&mut slot.phase, Phase::Ended) else {
            unreachable!("a held lock is settled once, and its slot stays until then");
        };
        if let Settlement::Expire = settlement {
            self.end_when_idle(index);
            return;
        }
        let (grant, attempt) = (held.grant, held.attempt);
        slot.phase = Phase::Settling(Settling {
            grant,
            attempt,
            settlement,
            reply,
            tries: 0,
        });
        // A renewal that is only queued is overtaken: its place now holds the settlement.
        if slot.way != Way::Sent {
            slot.way = Way::Idle;
            self.want(index);
        }
    }

    /// Queues the slot's command, unless one is on its way; its answer will bring us back.
    fn want(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.way == Way::Idle {
            slot.way = Way::Queued;
            let renewal = matches!(slot.phase, Phase::Held(_));
            let queue = if renewal {
                &mut self.renewals
            } else {
                &mut self.commands
            };
            queue.slots.push_back(index);
        }
    }

    fn send(&mut self) {
        while self.renewals.calls < RENEWAL_CALLS && !self.renewals.slots.is_empty() {
            self.send_batch(Lane::Renewals);
        }
        while let Some(&worth) = WORTH_A_CALL.get(self.commands.calls)
            && self.commands.slots.len() >= worth
        {
            self.send_batch(Lane::Commands);
        }
    }

    fn send_batch(&mut self, lane: Lane) {
        let most = self.calls.max_batch();
        let at = self.clock.now();
        let (mut sent, mut commands) = (Vec::new(), Vec::new());
        let mut limit = CALL_LIMIT;
        while sent.len() < most
            && let Some(index) = self.queue(lane).slots.pop_front()
        {
            // A place may be stale: the slot has been sent from a later place, or is gone.
            let Some(slot) = self
                .slots
                .get_mut(index)
                .filter(|slot| slot.way == Way::Queued)
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
            // A call that is lost must leave time for the next before the lock ends, and not only
            // a renewal: behind a completion that hangs, the handler would run again elsewhere.
            limit = limit.min(slot.terms.ttl / 6);
            sent.push(Sent {
                slot: index,
                what,
                at,
            });
            commands.push(command);
        }
        if !sent.is_empty() {
            self.queue(lane).calls += 1;
            self.calls.send(lane, sent, commands, limit);
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

    /// Raises the floor, but not to an absurd token, which would spread to every key.
    fn saw(&mut self, answer: &Answer) {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        if let Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } = answer.reply {
            let sane = (answer.now + DAY).duration_since(std::time::UNIX_EPOCH);
            if sane.is_ok_and(|sane| u128::from(token.get()) <= sane.as_micros()) {
                self.floor = self.floor.max(token);
            }
        }
    }

    fn acquire_answered(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let slot = &mut self.slots[index];
        let ttl = slot.terms.ttl;
        let Phase::Acquiring { reply: waiting, .. } =
            std::mem::replace(&mut slot.phase, Phase::Ended)
        else {
            unreachable!("an acquisition waits for its answer");
        };
        let outcome = match answer.map(|answer| answer.reply) {
            Ok(Reply::Acquired { token, attempt }) => {
                return self.granted(sent, token, attempt, waiting, Acquisition::Held);
            }
            Ok(Reply::Exhausted {
                token,
                attempt,
                burials,
                last_error,
            }) => {
                return self.granted(sent, token, attempt, waiting, |lock| {
                    let (attempts, burials) = (attempt.into(), burials.into());
                    Acquisition::Exhausted {
                        lock,
                        attempts,
                        burials,
                        last_error,
                    }
                });
            }
            Ok(Reply::Settled(State::Retrying)) => {
                // The acquire in doubt was cancelled after all. Its nonce is used up.
                slot.owner = draw_owner();
                slot.phase = Phase::Acquiring {
                    reply: waiting,
                    doubt: false,
                };
                return self.want(index);
            }
            Ok(Reply::Locked { remaining }) => {
                let poll = (ttl / 3).mul_f64(0.9 + 0.2 * fastrand::f64());
                let retry_after = remaining.min(poll).max(Duration::from_millis(50));
                Acquisition::Locked {
                    retry_after,
                    settled: None,
                }
            }
            Ok(Reply::BackingOff { remaining, attempt }) => Acquisition::BackingOff {
                retry_after: remaining,
                attempts: attempt.into(),
            },
            Ok(Reply::Duplicate {
                reply,
                attempt,
                completed_at,
            }) => Acquisition::Duplicate {
                reply,
                attempts: attempt.into(),
                completed_at,
            },
            Ok(Reply::Parked { attempt, reason }) => Acquisition::Parked {
                attempts: attempt.into(),
                reason,
            },
            Ok(Reply::Mismatch) => Acquisition::Mismatch,
            Ok(Reply::Corrupt) => Acquisition::Unavailable(corrupt()),
            Ok(_) => Acquisition::Unavailable(StoreError::unreadable("not an acquire's answer")),
            Err(error) => {
                let _ = waiting.send(Acquisition::Unavailable(error));
                // The reply may have been lost only on its way here.
                return self.cancel(index);
            }
        };
        let _ = waiting.send(outcome);
        self.end_when_idle(index);
    }

    fn granted(
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
                self.settle(Settle {
                    slot: index,
                    settlement,
                    reply: None,
                });
            }
        }
    }

    fn renew_answered(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let index = sent.slot;
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let ttl = slot.terms.ttl;
        let Phase::Held(held) = &mut slot.phase else {
            // Settled meanwhile: that command is the one to send now, if there is one.
            return match slot.phase {
                Phase::Ended => self.end_when_idle(index),
                _ => self.want(index),
            };
        };
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Renewed) => held.renewed(sent.at, ttl),
            Ok(Reply::Lost | Reply::Settled(_)) => {
                tracing::warn!(token = held.grant.token.get(), "lock lost to another grant");
                held.lock.lose(LostCause::Superseded);
            }
            // One failed round loses nothing: there is time for some more before the deadline.
            Ok(_) => held.renew_at = now + ttl / 24,
            Err(error) => {
                tracing::debug!(%error, "renewal failed");
                held.renew_at = now + ttl / 24;
            }
        }
        self.look(index);
    }

    fn settle_answered(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let slot = &mut self.slots[index];
        let Phase::Settling(settling) = &mut slot.phase else {
            unreachable!("a settlement waits for its answer");
        };
        let result = match answer.map(|answer| answer.reply) {
            Ok(Reply::Completed | Reply::Retrying | Reply::Released | Reply::Rejected) => Ok(()),
            Ok(Reply::Lost | Reply::Settled(_)) => Err(NotSettled::Lost(settling.lost(&slot.key))),
            Ok(Reply::Corrupt) => Err(NotSettled::Unreadable(corrupt())),
            // An answer, too: no repeat would change it.
            Err(error) if is_unreadable(&error) => Err(NotSettled::Unreadable(error)),
            Ok(_) | Err(_) => {
                // Only an answer decides; the command is the same, so it can be repeated. That
                // keeps the lock from others as well as a renewal would.
                settling.tries += 1;
                let at = self.clock.now() + repeat_after(settling.tries).min(slot.terms.ttl / 6);
                return self.timers.set(index, &mut slot.timer, Some(at));
            }
        };
        if let Some(reply) = settling.reply.take() {
            let _ = reply.send(result);
        }
        slot.phase = Phase::Ended;
        self.end_when_idle(index);
    }

    fn cancel(&mut self, index: usize) {
        let until = self.clock.now() + CANCEL_FOR.max(self.slots[index].terms.ttl);
        self.slots[index].phase = Phase::Cancelling { tries: 0, until };
        self.want(index);
    }

    fn cancel_answered(&mut self, index: usize, answer: Result<Answer, StoreError>) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        match (&mut slot.phase, answer) {
            // Somebody asked for the key meanwhile; the nonce is used up if it was cancelled.
            (Phase::Acquiring { doubt, .. }, answer) => {
                if answer.is_ok() {
                    slot.owner = draw_owner();
                    *doubt = false;
                }
                self.want(index);
            }
            (Phase::Cancelling { tries, until }, Err(error))
                if now < *until && !is_unreadable(&error) =>
            {
                *tries += 1;
                let at = now + repeat_after(*tries);
                self.timers.set(index, &mut slot.timer, Some(at));
            }
            _ => {
                slot.phase = Phase::Ended;
                self.end_when_idle(index);
            }
        }
    }

    fn fire(&mut self) {
        let now = self.clock.now();
        while let Some(index) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            slot.timer = None;
            match &slot.phase {
                Phase::Held(_) => self.look(index),
                _ => self.want(index),
            }
        }
    }

    /// Renews a held lock if that is due, declares it lost if it is, and sets its next timer.
    fn look(&mut self, index: usize) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let Phase::Held(held) = &slot.phase else {
            return;
        };
        if let Some(lost) = held.lock.loss() {
            tracing::warn!(token = lost.token.get(), cause = ?lost.cause, "lock lost");
        } else if now >= held.hold_until {
            tracing::warn!(
                token = held.grant.token.get(),
                "lock held too long, not renewed"
            );
            held.lock.lose(LostCause::MaxHold);
        } else if now >= held.renew_at {
            self.want(index);
        }
        let slot = &mut self.slots[index];
        let Phase::Held(held) = &slot.phase else {
            return;
        };
        let next = held.next(slot.way != Way::Idle);
        self.timers.set(index, &mut slot.timer, next);
    }

    /// Removes a slot whose last command is answered.
    fn end_when_idle(&mut self, index: usize) {
        if self.slots[index].way != Way::Sent {
            let mut slot = self.slots.remove(index);
            self.timers.set(index, &mut slot.timer, None);
            self.by_key.remove(&slot.key);
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
