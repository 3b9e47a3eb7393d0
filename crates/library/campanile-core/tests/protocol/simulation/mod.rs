//! A simulation of clients that share a store over an unreliable network: commands and replies are
//! lost, delayed or duplicated, processes crash and pause, and the store's clock jumps.
//!
//! The clients follow the protocol: one acquisition per key at a time, a deadline that counts from
//! before the command was sent, and a settling command that is repeated until it is answered. The
//! properties are checked on the resulting [`History`].

mod client;
mod history;
mod script;

use campanile_core::{Entry, FencingToken, Operation, Owner, Reply};
use proptest::prelude::*;

use self::client::{Client, Decision};
use self::script::{Action, Delivery, Script};
use crate::draft::{DAY, NOW};
use crate::step_properties::Step;

pub(crate) use self::history::{Ending, Event, History};
pub(crate) use self::script::Faults;

const CLIENTS: usize = 3;
const KEYS: usize = 2;

/// Generates the histories of scripts with these faults.
pub(crate) fn histories(faults: Faults) -> impl Strategy<Value = History> {
    script::scripts(faults).prop_map(|script| Simulation::new(&script).run(script))
}

struct Simulation {
    /// Monotonic time, as the clients measure it.
    elapsed: u64,
    /// How far the store's clock is ahead, or behind if negative.
    clock_offset: i64,
    max_attempts: u16,
    entries: [Option<Entry>; KEYS],
    /// Earlier versions of each entry, for a store that loses its last writes.
    previous_entries: [Vec<Option<Entry>>; KEYS],
    clients: [Client; CLIENTS],
    /// Every command sent so far. Each may arrive late or again.
    sent: Vec<(usize, Operation)>,
    last_nonce: u64,
    history: History,
}

impl Simulation {
    fn new(script: &Script) -> Self {
        Self {
            elapsed: 0,
            clock_offset: 0,
            max_attempts: script.max_attempts,
            entries: Default::default(),
            previous_entries: Default::default(),
            clients: std::array::from_fn(|_| Client::new()),
            sent: Vec::new(),
            last_nonce: 0,
            history: History::default(),
        }
    }

    fn run(mut self, script: Script) -> History {
        for action in script.actions {
            self.perform(action);
        }
        self.history
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::ClientStep { client, key, intent, delivery } => {
                let (elapsed, last_nonce) = (self.elapsed, &mut self.last_nonce);
                let new_owner = || {
                    *last_nonce += 1;
                    Owner::new(*last_nonce).expect("counted from 1")
                };
                let actor = &mut self.clients[client];
                let decision = actor.decide(key, &intent, self.max_attempts, elapsed, new_owner);
                self.execute(client, key, decision, &delivery);
            }
            Action::LateDelivery(index) => {
                if !self.sent.is_empty() {
                    let (key, operation) = index.get(&self.sent).clone();
                    self.deliver(key, operation);
                }
            }
            Action::Wait(micros) => self.elapsed += micros,
            Action::ClockJumps(micros) => {
                self.clock_offset += micros;
                self.log(Event::ClockJumped { forward: micros > 0 });
            }
            Action::Crash(client) => {
                self.clients[client] = Client::new();
                self.log(Event::Crashed { client });
            }
            Action::Expire(key) => {
                // Longer than any retention. The entries of the other keys stand for entries
                // written since.
                self.elapsed += 31 * DAY;
                self.entries[key] = None;
                self.log(Event::Expired { key });
            }
            Action::Redrive { key, force, stale } => {
                let token = self.entries[key].as_ref().map_or(0, |entry| entry.token().get());
                let token = FencingToken::new(token.saturating_sub(stale.into()));
                let token = token.expect("at most an entry's token");
                self.deliver(key, Operation::Redrive { token, force });
            }
            Action::Restore { key, index } => {
                if !self.previous_entries[key].is_empty() {
                    self.entries[key] = index.get(&self.previous_entries[key]).clone();
                    self.log(Event::Restored);
                }
            }
        }
    }

    fn execute(&mut self, client: usize, key: usize, decision: Decision, delivery: &Delivery) {
        match decision {
            Decision::Nothing => {}
            Decision::Effect(grant) => self.log(Event::Effect { key, grant }),
            Decision::DeadLetter(grant) => self.log(Event::DeadLetter { key, grant }),
            Decision::Send { operation, ending } => {
                if let Some((grant, ending)) = ending {
                    self.log(Event::RunEnded { grant, ending });
                }
                self.send(client, key, operation, delivery);
            }
        }
    }

    fn send(&mut self, client: usize, key: usize, operation: Operation, delivery: &Delivery) {
        let sent_at = self.elapsed;
        self.sent.push((key, operation.clone()));
        let &Delivery::Arrives { after, answered_after } = delivery else {
            return;
        };
        self.elapsed += after;
        let reply = self.deliver(key, operation.clone());
        let Some(answered_after) = answered_after else {
            return;
        };
        self.elapsed += answered_after;
        let held = self.clients[client].handle_reply(key, &operation, reply, sent_at);
        if let Some((grant, until)) = held {
            self.log(Event::LockHeld { key, client, grant, until });
        }
    }

    fn deliver(&mut self, key: usize, operation: Operation) -> Reply {
        let now = NOW.saturating_add(self.elapsed).saturating_add_signed(self.clock_offset);
        self.previous_entries[key].push(self.entries[key].clone());
        let step = Step::apply(self.entries[key].take(), operation, now);
        self.entries[key] = step.after.clone();
        let reply = step.reply.clone();
        self.log(Event::Stepped { key, step: Box::new(step) });
        reply
    }

    fn log(&mut self, event: Event) {
        self.history.push(self.elapsed, event);
    }
}
