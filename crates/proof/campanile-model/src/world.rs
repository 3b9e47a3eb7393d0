//! A state of the model: the store, the clients, the network, and what may still go wrong.

use campanile_core::Reply;
use campanile_core::limits::MAX_INTERRUPTS;

use crate::action::{Action, Budget};
use crate::client::{Client, Phase};
use crate::compact::{Command, LONG, Slot, TTL, Token, Verb, reply_text, step_results};
use crate::history;
use crate::raw::COMPLETED;
use crate::rules::Rule;
use crate::stepper::Stepper;

/// The most clients of a world.
pub(crate) const MAX_CLIENTS: usize = 3;

/// A state of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    /// The time by the clients' clocks, in ticks.
    pub(crate) time: i16,
    /// How far the store's clock is ahead.
    pub(crate) offset: i16,
    pub(crate) entry: Slot,
    /// What the replica has, from the moment at which it stopped receiving.
    pub(crate) replica: Option<Slot>,
    /// The first `population` of them exist.
    pub(crate) clients: [Client; MAX_CLIENTS],
    pub(crate) population: u8,
    /// A copy of a command that will arrive later.
    pub(crate) copy: Command,
    pub(crate) budget: Budget,
    /// The largest token that was granted.
    max_token: Token,
    /// Whether the entry was lost, by its retention or by a fault.
    was_lost: bool,
    /// Whether the store's clock was set back.
    was_set_back: bool,
    /// Whether the key was settled in the store, and neither reopened nor lost since.
    is_settled: bool,
    /// How many more handler runs the rules permit.
    runs_left: u16,
    /// The results of the steps that a client knows to be recorded, or zeros.
    known_steps: [u8; 2],
}

/// What an action did.
pub(crate) struct Applied {
    /// The command that arrived at the store, and the reply.
    pub(crate) answered: Option<(Command, Reply)>,
    pub(crate) broken: Option<&'static Rule>,
}

impl World {
    pub(crate) fn new(entry: Slot, population: u8, budget: Budget, max_attempts: u16) -> Self {
        Self {
            time: 0,
            offset: 0,
            entry,
            replica: None,
            clients: [Client::NEW; MAX_CLIENTS],
            population,
            copy: Command::NONE,
            budget,
            max_token: entry.token,
            was_lost: false,
            was_set_back: false,
            is_settled: entry.is_settled(),
            runs_left: runs_left(entry, max_attempts),
            known_steps: [0; 2],
        }
    }

    /// The store's clock.
    pub(crate) fn now(&self) -> i16 {
        self.time + self.offset
    }

    /// Performs an action, and checks the rules about histories.
    pub(crate) fn apply(&mut self, action: Action, stepper: &mut Stepper) -> Applied {
        let mut applied = Applied { answered: None, broken: None };
        match action {
            Action::Acquire(index, payload) => {
                self.budget.acquisitions -= 1;
                let owner = self.unused_nonce();
                let (time, client) = (self.time, &mut self.clients[usize::from(index)]);
                let pending = Command {
                    verb: Verb::Acquire,
                    owner,
                    payload,
                    floor: client.floor,
                    ..Command::NONE
                };
                *client = Client {
                    phase: Phase::Acquiring,
                    pending,
                    owner,
                    payload,
                    sent: time,
                    floor: client.floor,
                    ..Client::NEW
                };
            }
            Action::Arrive(index) => {
                let index = usize::from(index);
                let command = self.clients[index].pending;
                applied = self.arrive(command, stepper);
                if let Some((_, reply)) = &applied.answered {
                    let broken = self.handle_reply(index, reply);
                    applied.broken = applied.broken.or(broken);
                }
            }
            Action::Unanswered(index) => {
                applied = self.arrive(self.clients[usize::from(index)].pending, stepper);
            }
            Action::Copy(index) => {
                self.budget.copies -= 1;
                self.copy = self.clients[usize::from(index)].pending;
            }
            Action::Late => {
                let copy = std::mem::replace(&mut self.copy, Command::NONE);
                applied = self.arrive(copy, stepper);
            }
            Action::Cancel(index) => {
                let client = &mut self.clients[usize::from(index)];
                let pending = Command { verb: Verb::Cancel, owner: client.owner, ..Command::NONE };
                let (floor, is_cut) = (client.floor, client.is_cut);
                *client =
                    Client { phase: Phase::Cancelling, pending, floor, is_cut, ..Client::NEW };
            }
            Action::Abandon(index) => self.clients[usize::from(index)].end(),
            Action::Effect(index) => applied.broken = self.act(index.into(), Phase::Running),
            Action::Publish(index) | Action::PublishOwn(index) => {
                applied.broken = self.act(index.into(), Phase::GivingUp);
            }
            Action::Renew(index) => {
                let (time, client) = (self.time, &mut self.clients[usize::from(index)]);
                client.pending = client.command(Verb::Renew);
                client.sent = time;
            }
            Action::RecordStep(index, verb) => {
                self.budget.steps -= 1;
                let client = &mut self.clients[usize::from(index)];
                client.pending = client.command(verb);
            }
            Action::Settle(index, verb) => self.clients[usize::from(index)].settle(verb),
            Action::Tick => {
                self.budget.ticks -= 1;
                self.time += 1;
            }
            Action::Crash(index) => {
                self.budget.crashes -= 1;
                self.clients[usize::from(index)] = Client::NEW;
            }
            Action::Redrive(verb) => {
                self.budget.redrives -= 1;
                applied = self.arrive(self.redrive(verb), stepper);
            }
            Action::RedriveLate(verb) => {
                self.budget.redrives -= 1;
                self.budget.copies -= 1;
                self.copy = self.redrive(verb);
            }
            Action::Take => {
                self.budget.takes -= 1;
                self.cut_locks();
                applied = self.arrive(self.take(), stepper);
            }
            Action::TakeLate => {
                self.budget.takes -= 1;
                self.budget.copies -= 1;
                self.cut_locks();
                self.copy = self.take();
            }
            Action::Jump(ticks) => {
                self.offset += i16::from(ticks);
                if ticks > 0 {
                    self.budget.forward -= 1;
                    self.cut_locks();
                } else {
                    self.budget.back -= 1;
                    self.was_set_back = true;
                }
            }
            Action::Expire => {
                self.budget.expirations -= 1;
                self.time += LONG;
                self.lose_entry(Slot::EMPTY, stepper.max_attempts);
            }
            Action::Evict => {
                self.budget.evictions -= 1;
                self.time += 1;
                self.cut_locks();
                self.lose_entry(Slot::EMPTY, stepper.max_attempts);
            }
            Action::Lag => {
                self.budget.failovers -= 1;
                self.replica = Some(self.entry);
            }
            Action::Failover => {
                let entry = self.replica.take().unwrap_or(Slot::EMPTY);
                self.time += 1;
                self.cut_locks();
                self.lose_entry(entry, stepper.max_attempts);
            }
        }
        applied
    }

    fn redrive(&self, verb: Verb) -> Command {
        Command { verb, token: self.entry.token, ..Command::NONE }
    }

    /// The operator's command that takes the lock from its owner.
    fn take(&self) -> Command {
        let Slot { owner, token, flags: [giving_up, ..], .. } = self.entry;
        let verb = if giving_up { Verb::FailGiveUp } else { Verb::Fail };
        Command { verb, owner, token, payload: 1, ..Command::NONE }
    }

    /// A command arrives at the store.
    fn arrive(&mut self, command: Command, stepper: &mut Stepper) -> Applied {
        let max_attempts = stepper.max_attempts;
        let transition = stepper.step(self.entry, command, self.now());
        let before = std::mem::replace(&mut self.entry, transition.after);
        let mut broken = transition.broken;
        if transition.is_new_grant {
            let is_excused = self.was_lost && self.was_set_back;
            if self.entry.token <= self.max_token && !is_excused {
                broken = broken.or(Some(&history::RISING_TOKEN));
            }
            self.max_token = self.max_token.max(self.entry.token);
        }
        if self.entry.is_settled() {
            self.is_settled = true;
        }
        if self.entry.state == COMPLETED {
            self.known_steps = [0; 2];
        }
        if transition.reply == Reply::Reopened && before != self.entry {
            self.is_settled = false;
            self.runs_left = runs_left(Slot::EMPTY, max_attempts);
        }
        Applied { answered: Some((command, transition.reply.clone())), broken }
    }

    /// The client at `index` gets the answer to its command.
    fn handle_reply(&mut self, index: usize, reply: &Reply) -> Option<&'static Rule> {
        let (time, entry) = (self.time, self.entry);
        let client = &mut self.clients[index];
        match (client.pending.verb, reply) {
            (Verb::Acquire, Reply::Acquired { attempt, .. } | Reply::Exhausted { attempt, .. }) => {
                let is_run = matches!(reply, Reply::Acquired { .. });
                client.phase = if is_run { Phase::Running } else { Phase::GivingUp };
                client.pending = Command::NONE;
                client.attempt = *attempt;
                // The reply has the token of the entry, by a rule about single steps.
                client.token = entry.token;
                client.until = client.sent + TTL;
                let is_above_floor = client.token > client.floor;
                client.floor = client.floor.max(client.token);
                if !is_above_floor {
                    return Some(&history::FLOOR);
                }
                if let Reply::Acquired { steps, .. } = reply {
                    let results = step_results(steps.as_ref());
                    let mut known = self.known_steps.iter().zip(&results);
                    if known.any(|(&known, &result)| known != 0 && known != result) {
                        return Some(&history::STEP);
                    }
                    client.has_first_step = results[0] != 0;
                    self.known_steps = results;
                }
                let client = *client;
                let mut others = (0..MAX_CLIENTS).filter(|other| *other != index);
                let overlaps = others.any(|other| {
                    let other = &self.clients[other];
                    other.holds(time) && !other.is_cut
                });
                (overlaps && client.holds(time) && !client.is_cut).then_some(&history::OVERLAP)
            }
            (Verb::Acquire, Reply::Duplicate { reply: Some(reply), .. }) => {
                let is_of = |payload| **reply == *reply_text(payload).as_bytes();
                let is_foreign = client.payload != 0 && !is_of(client.payload) && !is_of(0);
                client.end();
                is_foreign.then_some(&history::PAYLOAD)
            }
            (Verb::Acquire, Reply::Locked { .. } | Reply::BackingOff { .. }) => {
                client.end();
                self.budget.acquisitions += 1;
                None
            }
            (verb, Reply::StepRecorded) => {
                let is_first = verb == Verb::RecordFirst;
                client.pending = Command::NONE;
                client.has_first_step |= is_first;
                let step = usize::from(!is_first);
                let result = entry.steps[step];
                let known = std::mem::replace(&mut self.known_steps[step], result);
                (result == 0 || (known != 0 && known != result)).then_some(&history::STEP)
            }
            (_, Reply::StepTooLarge) => {
                client.pending = Command::NONE;
                None
            }
            (Verb::Renew, Reply::Renewed) => {
                client.pending = Command::NONE;
                client.until = client.until.max(client.sent + TTL);
                None
            }
            _ => {
                client.end();
                None
            }
        }
    }

    /// The handler has its effect, or the dead letter is published.
    fn act(&mut self, index: usize, phase: Phase) -> Option<&'static Rule> {
        let client = &mut self.clients[index];
        client.phase = phase;
        client.has_acted = true;
        if client.is_cut {
            return None;
        }
        if self.is_settled {
            let is_run = phase == Phase::Running;
            return Some(if is_run { &history::RUN_TWICE } else { &history::LETTER_TWICE });
        }
        if phase == Phase::Running {
            match self.runs_left.checked_sub(1) {
                Some(left) => self.runs_left = left,
                None => return Some(&history::RUNS),
            }
        }
        None
    }

    /// Nothing is promised about the locks of today's clients any more.
    fn cut_locks(&mut self) {
        for client in &mut self.clients {
            client.is_cut = !matches!(client.phase, Phase::Idle | Phase::Settling);
        }
    }

    fn lose_entry(&mut self, entry: Slot, max_attempts: u16) {
        self.entry = entry;
        self.was_lost = true;
        self.is_settled = entry.is_settled();
        self.runs_left = runs_left(entry, max_attempts);
        self.known_steps = [0; 2];
    }

    fn unused_nonce(&self) -> u8 {
        let owners = self.clients.iter().flat_map(|client| [client.owner, client.pending.owner]);
        let replica = self.replica.map_or(0, |entry| entry.owner);
        owners.chain([self.entry.owner, replica, self.copy.owner]).max().unwrap_or(0) + 1
    }

    /// Replaces the world by the representative of all worlds that differ from it only in the order of
    /// the clients and in the nonces. Returns the previous positions of the clients.
    pub(crate) fn canonicalize(&mut self) -> [u8; MAX_CLIENTS] {
        let replica_owner = self.replica.map_or(0, |entry| entry.owner);
        let (entry_owner, copy_owner) = (self.entry.owner, self.copy.owner);
        // Nonces are compared only for equality, so what matters is where else they are.
        let places = |owner: u8| {
            u8::from(owner == entry_owner)
                + 2 * u8::from(owner == replica_owner)
                + 4 * u8::from(owner == copy_owner)
        };
        let clients = self.clients;
        let mut order = [0, 1, 2];
        order[..usize::from(self.population)].sort_by_key(|&position: &u8| {
            let client = clients[usize::from(position)];
            let owner = places(client.owner);
            let pending = Command { owner: places(client.pending.owner), ..client.pending };
            Client { owner, pending, ..client }
        });
        self.clients = order.map(|position| clients[usize::from(position)]);
        let mut names = [0; 32];
        let mut last = 0;
        let mut rename = |owner: &mut u8| {
            if *owner != 0 {
                let name = &mut names[usize::from(*owner)];
                if *name == 0 {
                    last += 1;
                    *name = last;
                }
                *owner = *name;
            }
        };
        rename(&mut self.entry.owner);
        for client in &mut self.clients {
            rename(&mut client.owner);
            rename(&mut client.pending.owner);
        }
        rename(&mut self.copy.owner);
        if let Some(replica) = &mut self.replica {
            rename(&mut replica.owner);
        }
        order
    }
}

/// How often the handler may run from this entry on: each run uses an attempt, or one of the
/// interruptions that are not counted.
fn runs_left(entry: Slot, max_attempts: u16) -> u16 {
    if max_attempts == 0 {
        return u16::MAX; // unlimited
    }
    let interrupts = MAX_INTERRUPTS.saturating_sub(entry.interrupts);
    max_attempts.saturating_sub(entry.attempt) + u16::from(interrupts)
}
