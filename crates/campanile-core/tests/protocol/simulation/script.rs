//! What happens to the simulated clients, as plain data that shrinks.

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
    /// A client does the next thing for a key.
    ClientStep {
        client: usize,
        key: usize,
        intent: Intent,
        delivery: Delivery,
    },
    /// A command that was sent before arrives: for the first time, or again.
    LateDelivery(Index),
    /// Time goes on, for all.
    Wait(u64),
    /// The store's clock jumps, on or back.
    ClockJumps(i64),
    Crash(usize),
    /// The entry's retention is over.
    Expire(usize),
    /// An operator redrives, with the entry's token or with one that is not.
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

/// What a client would like to do; what it does depends on where it stands.
#[derive(Clone, Debug)]
pub(super) struct Intent {
    pub(super) goal: Goal,
    /// Which of two payloads the record has that it is working on, if it begins.
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

/// What becomes of a command.
#[derive(Clone, Debug)]
pub(super) enum Delivery {
    /// It does not arrive now; it may be late.
    Lost,
    /// It arrives after so long, and so does its answer, if it does.
    Arrives { after: u64, answered_after: Option<u64> },
}

/// What may happen beside lost and late commands, crashes and pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// The store's clock goes back at times.
    pub(crate) clock_jumps_back: bool,
    /// The store loses its last writes at times.
    pub(crate) loses_writes: bool,
}

impl Faults {
    pub(crate) const ALL: Self = Self { clock_jumps_back: true, loses_writes: true };
    /// The store keeps its data.
    pub(crate) const CLOCK: Self = Self { clock_jumps_back: true, loses_writes: false };
    /// The store keeps its data, and its clock moves on.
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
