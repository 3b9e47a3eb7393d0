//! What can happen next.

use crate::client::{Client, Phase};
use crate::compact::{Command, LONG, Slot, TTL, Verb};
use crate::config::Config;
use crate::raw::PROCESSING;
use crate::world::World;

/// How often each thing may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Budget {
    /// Acquisitions, each with its own nonce. One that has to wait does not count.
    pub(crate) acquisitions: u8,
    /// Half hours that pass: half of the lock's TTL, or the whole backoff.
    pub(crate) ticks: u8,
    /// Results of the handler's steps that are sent to the store.
    pub(crate) steps: u8,
    /// Processes that crash and restart.
    pub(crate) crashes: u8,
    /// Commands of which a copy arrives later, at any time.
    pub(crate) copies: u8,
    /// Redrives by an operator, forced or not, with the current token or, as a copy, a stale one.
    pub(crate) redrives: u8,
    /// Locks that an operator takes from their owner.
    pub(crate) takes: u8,
    /// Steps of the store's clock forward.
    pub(crate) forward: u8,
    /// Steps of the store's clock back, by half an hour or by a day.
    pub(crate) back: u8,
    /// Entries that reach the end of their retention.
    pub(crate) expirations: u8,
    /// Entries that the store loses, at any time.
    pub(crate) evictions: u8,
    /// Failovers to a replica that has any earlier version of the entry.
    pub(crate) failovers: u8,
}

/// One thing that happens. The numbers are positions of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A record with this payload is delivered, and the client sends an acquire.
    Acquire(u8, u8),
    /// The command arrives, and the client gets the answer.
    Arrive(u8),
    /// The command arrives, and its answer is lost.
    Unanswered(u8),
    /// The network keeps a copy of the command.
    Copy(u8),
    /// The copy arrives.
    Late,
    Cancel(u8),
    /// The cancel is not answered either.
    Abandon(u8),
    Effect(u8),
    Publish(u8),
    /// The dead letter is published under the lock of the attempt that failed.
    PublishOwn(u8),
    Renew(u8),
    /// The handler has run a step, and the result is sent by this command. It may do so although it was
    /// given a result, as if that had been lost.
    RecordStep(u8, Verb),
    /// The client ends its grant by this command.
    Settle(u8, Verb),
    Tick,
    Crash(u8),
    Redrive(Verb),
    RedriveLate(Verb),
    /// An operator fails the attempt of the current owner.
    Take,
    TakeLate,
    /// The store's clock is set.
    Jump(i8),
    Expire,
    Evict,
    /// The replica stops receiving.
    Lag,
    Failover,
}

/// The commands that end a grant.
const SETTLING: [Verb; 7] = [
    Verb::Complete,
    Verb::Fail,
    Verb::FailLast,
    Verb::FailGiveUp,
    Verb::ReleaseRan,
    Verb::Release,
    Verb::GiveUp,
];

impl World {
    /// Lists what can happen next.
    pub(crate) fn actions(&self, config: &Config, actions: &mut Vec<Action>) {
        actions.clear();
        for (index, client) in (0..self.population).zip(&self.clients) {
            self.client_actions(index, client, config, actions);
        }
        let Budget { ticks, redrives, takes, copies, .. } = self.budget;
        let has_copy = self.copy != Command::NONE;
        let mut add = |is_possible: bool, action| {
            if is_possible {
                actions.push(action);
            }
        };
        add(has_copy, Action::Late);
        add(ticks > 0, Action::Tick);
        let has_entry = self.entry != Slot::EMPTY;
        for verb in [Verb::Redrive, Verb::RedriveForced] {
            add(has_entry && redrives > 0, Action::Redrive(verb));
            let has_room = copies > 0 && !has_copy;
            add(has_entry && redrives > 0 && has_room, Action::RedriveLate(verb));
        }
        let is_held = self.entry.state == PROCESSING;
        add(is_held && takes > 0, Action::Take);
        add(is_held && takes > 0 && copies > 0 && !has_copy, Action::TakeLate);
        add(self.budget.forward > 0, Action::Jump(TTL as i8));
        add(self.budget.back > 0, Action::Jump(-1));
        add(self.budget.back > 0, Action::Jump(-(LONG as i8)));
        add(has_entry && self.budget.expirations > 0, Action::Expire);
        add(has_entry && self.budget.evictions > 0, Action::Evict);
        add(self.budget.failovers > 0 && self.replica.is_none(), Action::Lag);
        add(self.replica.is_some_and(|old| old != self.entry), Action::Failover);
    }

    fn client_actions(
        &self,
        index: u8,
        client: &Client,
        config: &Config,
        actions: &mut Vec<Action>,
    ) {
        let mut add = |is_possible: bool, action| {
            if is_possible {
                actions.push(action);
            }
        };
        let is_live = self.time < client.until;
        let has_acted = client.has_acted;
        match client.phase {
            Phase::Running | Phase::GivingUp | Phase::Settling if config.any_command => {
                let is_run = client.phase == Phase::Running;
                let act = if is_run { Action::Effect } else { Action::Publish };
                add(is_live && !has_acted, act(index));
                for verb in SETTLING {
                    add(client.pending.verb != verb, Action::Settle(index, verb));
                }
            }
            Phase::Idle => {
                for &payload in config.payloads {
                    add(self.budget.acquisitions > 0, Action::Acquire(index, payload));
                }
            }
            Phase::Acquiring => add(true, Action::Cancel(index)),
            Phase::Cancelling => add(true, Action::Abandon(index)),
            Phase::Running => {
                add(is_live && !has_acted, Action::Effect(index));
                add(is_live && has_acted, Action::PublishOwn(index));
                for verb in [Verb::Complete, Verb::Fail, Verb::FailLast, Verb::ReleaseRan] {
                    add(has_acted, Action::Settle(index, verb));
                }
                add(!has_acted, Action::Settle(index, Verb::Release));
            }
            Phase::GivingUp => {
                add(is_live && !has_acted, Action::Publish(index));
                add(has_acted, Action::Settle(index, Verb::GiveUp));
                add(!has_acted, Action::Settle(index, Verb::Release));
                add(!has_acted, Action::Settle(index, Verb::FailGiveUp));
            }
            Phase::Settling => {}
        }
        let is_waiting = client.pending != Command::NONE;
        let can_extend = client.holds(self.time) && client.until < self.time + TTL;
        add(can_extend && !is_waiting, Action::Renew(index));
        let is_running = client.phase == Phase::Running;
        // A step has an effect, so that its attempt is released as one that has begun.
        let can_record = is_running && has_acted && !is_waiting && self.budget.steps > 0;
        add(can_record, Action::RecordStep(index, Verb::RecordFirst));
        // The handler runs its second step with the result of the first.
        for verb in [Verb::RecordSecond, Verb::RecordLarge] {
            add(can_record && client.has_first_step, Action::RecordStep(index, verb));
        }
        add(is_waiting, Action::Arrive(index));
        add(is_waiting, Action::Unanswered(index));
        let has_room = self.budget.copies > 0 && self.copy == Command::NONE;
        add(is_waiting && has_room, Action::Copy(index));
        add(self.budget.crashes > 0 && *client != Client::NEW, Action::Crash(index));
    }
}
