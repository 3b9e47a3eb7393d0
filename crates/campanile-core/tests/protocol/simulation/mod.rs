//! A world of clients that share a store over a bad network: commands and answers get lost, come
//! late or twice, processes crash and pause, and the store's clock jumps.
//!
//! The clients keep to what the protocol asks of them: one acquisition for each key at a time, a
//! deadline from the instant before the command was sent, a settling command repeated until it is
//! answered. What comes of it is a [`History`], and the promises are tried on that.

mod client;
mod history;
mod script;

use campanile_core::{Entry, FencingToken, Operation, Owner, Reply};
use proptest::prelude::*;

use self::client::{Client, Decision};
use self::script::{Action, Fate, Script};
use crate::draft::{DAY, NOW};
use crate::rules::Step;

pub(crate) use self::history::{Ending, Event, History};
pub(crate) use self::script::Faults;

const CLIENTS: usize = 3;
const KEYS: usize = 2;

/// What comes of scripts in which these faults happen.
pub(crate) fn histories(faults: Faults) -> impl Strategy<Value = History> {
    script::scripts(faults).prop_map(|script| World::new(&script).run(script))
}

struct World {
    /// Time that only moves on, as clients measure it.
    elapsed: u64,
    /// What the store's clock is ahead, or behind.
    jumped: i64,
    max_attempts: u16,
    entries: [Option<Entry>; KEYS],
    /// What each entry was, for a store that loses its last writes.
    earlier: [Vec<Option<Entry>>; KEYS],
    clients: [Client; CLIENTS],
    /// Every command that was ever sent; any may arrive late, or again.
    sent: Vec<(usize, Operation)>,
    nonces: u64,
    history: History,
}

impl World {
    fn new(script: &Script) -> Self {
        Self {
            elapsed: 0,
            jumped: 0,
            max_attempts: script.max_attempts,
            entries: Default::default(),
            earlier: Default::default(),
            clients: std::array::from_fn(|_| Client::new()),
            sent: Vec::new(),
            nonces: 0,
            history: History::default(),
        }
    }

    fn run(mut self, script: Script) -> History {
        for action in script.actions {
            self.act(action);
        }
        self.history
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Act { client, key, intent, fate } => {
                let (elapsed, nonces) = (self.elapsed, &mut self.nonces);
                let draw = || {
                    *nonces += 1;
                    Owner::new(*nonces).expect("counted from 1")
                };
                let job = &mut self.clients[client];
                let decision = job.decide(key, &intent, self.max_attempts, elapsed, draw);
                self.carry_out(client, key, decision, &fate);
            }
            Action::Late(index) => {
                if !self.sent.is_empty() {
                    let (key, operation) = index.get(&self.sent).clone();
                    self.arrives(key, operation);
                }
            }
            Action::Wait(micros) => self.elapsed += micros,
            Action::ClockJumps(micros) => {
                self.jumped += micros;
                self.log(Event::Jumped { forward: micros > 0 });
            }
            Action::Crash(client) => {
                self.clients[client] = Client::new();
                self.log(Event::Crashed { client });
            }
            Action::Expire(key) => {
                // Longer than any retention; what the other keys hold was written since.
                self.elapsed += 31 * DAY;
                self.entries[key] = None;
                self.log(Event::Expired { key });
            }
            Action::Redrive { key, force, stale } => {
                let token = self.entries[key].as_ref().map_or(0, |entry| entry.token().get());
                let token = FencingToken::new(token.saturating_sub(stale.into()));
                let token = token.expect("not above an entry's");
                self.arrives(key, Operation::Redrive { token, force });
            }
            Action::Restore { key, index } => {
                if !self.earlier[key].is_empty() {
                    self.entries[key] = index.get(&self.earlier[key]).clone();
                    self.log(Event::Restored);
                }
            }
        }
    }

    fn carry_out(&mut self, client: usize, key: usize, decision: Decision, fate: &Fate) {
        match decision {
            Decision::Nothing => {}
            Decision::Effect(grant) => self.log(Event::Effect { key, grant }),
            Decision::Letter(grant) => self.log(Event::Letter { key, grant }),
            Decision::Send { operation, lets_go } => {
                if let Some((grant, how)) = lets_go {
                    self.log(Event::LetGo { grant, how });
                }
                self.send(client, key, operation, fate);
            }
        }
    }

    fn send(&mut self, client: usize, key: usize, operation: Operation, fate: &Fate) {
        let sent_at = self.elapsed;
        self.sent.push((key, operation.clone()));
        let &Fate::Arrives { after, answered_after } = fate else {
            return;
        };
        self.elapsed += after;
        let reply = self.arrives(key, operation.clone());
        let Some(answered_after) = answered_after else {
            return;
        };
        self.elapsed += answered_after;
        let hears = self.clients[client].hear(key, &operation, reply, sent_at);
        if let Some((grant, until)) = hears {
            self.log(Event::Holds { key, client, grant, until });
        }
    }

    fn arrives(&mut self, key: usize, operation: Operation) -> Reply {
        let now = NOW.saturating_add(self.elapsed).saturating_add_signed(self.jumped);
        self.earlier[key].push(self.entries[key].clone());
        let step = Step::take(self.entries[key].take(), operation, now);
        self.entries[key] = step.after.clone();
        let reply = step.reply.clone();
        self.log(Event::Stepped { key, step: Box::new(step) });
        reply
    }

    fn log(&mut self, event: Event) {
        self.history.push(self.elapsed, event);
    }
}
