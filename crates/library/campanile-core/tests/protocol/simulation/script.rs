//! The script of a simulation, as plain data that shrinks.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::Union;

use super::{CLIENTS, KEYS};
use crate::draft::{DAY, HOUR, SECOND};

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(super) max_attempts: u16,
    pub(super) actions: Vec<Action>,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A client takes its next step for a key.
    ClientStep {
        client: usize,
        key: usize,
        intent: Intent,
        delivery: Delivery,
    },
    /// A command sent earlier arrives, for the first time or again.
    LateDelivery(Index),
    /// Time passes, for the clients and the store.
    Wait(u64),
    /// The store's clock jumps, forward or back.
    ClockJumps(i64),
    Crash(usize),
    /// The retention of the entry expires.
    Expire(usize),
    /// An operator redrives, with the entry's token or a stale one.
    Redrive {
        key: usize,
        force: bool,
        stale: bool,
    },
    /// The store fails over to a replica that has an older entry.
    Restore {
        key: usize,
        index: Index,
    },
}

/// What a client intends to do. What it does depends on the phase of its job.
#[derive(Clone, Debug)]
pub(super) struct Intent {
    pub(super) goal: Goal,
    /// Which of two payloads the record has, if this step starts a job.
    pub(super) payload: u64,
    pub(super) ttl: u64,
    pub(super) delay: u64,
    /// Whether a failure is permanent.
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    Work,
    Renew,
    Succeed,
    Fail,
    GiveUp,
}

/// What happens to a command.
#[derive(Clone, Debug)]
pub(super) enum Delivery {
    /// The command does not arrive now, but may arrive late.
    Lost,
    /// The command arrives after this time. Its reply follows after another delay, or is lost.
    Arrives { after: u64, answered_after: Option<u64> },
}

/// The faults besides lost and delayed commands, crashes and pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// The store's clock sometimes jumps back.
    pub(crate) clock_jumps_back: bool,
    /// The store sometimes loses its last writes.
    pub(crate) loses_writes: bool,
}

impl Faults {
    pub(crate) const ALL: Self = Self { clock_jumps_back: true, loses_writes: true };
    /// The store keeps its data.
    pub(crate) const CLOCK: Self = Self { clock_jumps_back: true, loses_writes: false };
    /// The store keeps its data, and its clock never jumps back.
    pub(crate) const NONE: Self = Self { clock_jumps_back: false, loses_writes: false };
}

pub(super) fn scripts(faults: Faults) -> impl Strategy<Value = Script> {
    (1..=3_u16, vec(actions(faults), 1..150))
        .prop_map(|(max_attempts, actions)| Script { max_attempts, actions })
}

fn actions(faults: Faults) -> impl Strategy<Value = Action> {
    let jumps = [SECOND, HOUR, 3 * DAY].map(|micros| micros as i64);
    let mut all = vec![
        (80, client_steps().boxed()),
        (6, any::<Index>().prop_map(Action::LateDelivery).boxed()),
        (9, select(vec![0, 1, SECOND, 40 * SECOND, HOUR, 2 * DAY]).prop_map(Action::Wait).boxed()),
        (2, (0..CLIENTS).prop_map(Action::Crash).boxed()),
        (2, (0..KEYS).prop_map(Action::Expire).boxed()),
        (1, select(jumps.to_vec()).prop_map(Action::ClockJumps).boxed()),
        (3, redrives().boxed()),
    ];
    if faults.clock_jumps_back {
        all.push((
            2,
            select(jumps.map(|jump| -jump).to_vec()).prop_map(Action::ClockJumps).boxed(),
        ));
    }
    if faults.loses_writes {
        let restores = (0..KEYS, any::<Index>());
        all.push((2, restores.prop_map(|(key, index)| Action::Restore { key, index }).boxed()));
    }
    Union::new_weighted(all)
}

fn client_steps() -> impl Strategy<Value = Action> {
    (0..CLIENTS, 0..KEYS, intents(), deliveries()).prop_map(|(client, key, intent, delivery)| {
        Action::ClientStep { client, key, intent, delivery }
    })
}

fn redrives() -> impl Strategy<Value = Action> {
    (0..KEYS, any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(key, force, stale)| Action::Redrive { key, force, stale })
}

fn intents() -> impl Strategy<Value = Intent> {
    let goals = prop_oneof![
        4 => Just(Goal::Work),
        3 => Just(Goal::Renew),
        2 => Just(Goal::Succeed),
        3 => Just(Goal::Fail),
        1 => Just(Goal::GiveUp),
    ];
    let payloads = prop_oneof![12 => Just(1), 1 => Just(2)];
    let ttls = select(vec![SECOND / 2, 30 * SECOND, HOUR]);
    let delays = select(vec![0, SECOND, HOUR]);
    (goals, payloads, ttls, delays, prop::bool::weighted(0.2))
        .prop_map(|(goal, payload, ttl, delay, last)| Intent { goal, payload, ttl, delay, last })
}

fn deliveries() -> impl Strategy<Value = Delivery> {
    let transit_times = || prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(SECOND / 5)];
    let answers = prop_oneof![
        5 => transit_times().prop_map(Some),
        1 => Just(None),
    ];
    prop_oneof![
        8 => (transit_times(), answers)
            .prop_map(|(after, answered_after)| Delivery::Arrives { after, answered_after }),
        2 => Just(Delivery::Lost),
    ]
}
