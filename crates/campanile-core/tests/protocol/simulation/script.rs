//! What the world does to its clients, as plain data that shrinks.

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
    Act {
        client: usize,
        key: usize,
        intent: Intent,
        fate: Fate,
    },
    /// A command that was sent before arrives: for the first time, or again.
    Late(Index),
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
    pub(super) wish: Wish,
    /// Which of two payloads the record has that it is working on, if it begins.
    pub(super) payload: u64,
    pub(super) ttl: u64,
    pub(super) delay: u64,
    /// Whether a failure is permanent.
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Work,
    Renew,
    Succeed,
    Fail,
    GiveUp,
}

/// What becomes of a command.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// It does not arrive now; it may be late.
    Lost,
    /// It arrives after so long, and so does its answer, if it does.
    Arrives { after: u64, answered_after: Option<u64> },
}

/// What may happen beside lost and late commands, crashes and pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// The store's clock goes back at times.
    pub(crate) clock_goes_back: bool,
    /// The store loses its last writes at times.
    pub(crate) writes_get_lost: bool,
}

impl Faults {
    pub(crate) const ALL: Self = Self { clock_goes_back: true, writes_get_lost: true };
    /// The store keeps its data.
    pub(crate) const CLOCK: Self = Self { clock_goes_back: true, writes_get_lost: false };
    /// The store keeps its data, and its clock moves on.
    pub(crate) const NONE: Self = Self { clock_goes_back: false, writes_get_lost: false };
}

pub(super) fn scripts(faults: Faults) -> impl Strategy<Value = Script> {
    (1..=3_u16, vec(actions(faults), 1..150))
        .prop_map(|(max_attempts, actions)| Script { max_attempts, actions })
}

fn actions(faults: Faults) -> impl Strategy<Value = Action> {
    let jumps = [SECOND, HOUR, 3 * DAY].map(|micros| micros as i64);
    let mut all = vec![
        (80, acts().boxed()),
        (6, any::<Index>().prop_map(Action::Late).boxed()),
        (9, select(vec![0, 1, SECOND, 40 * SECOND, HOUR, 2 * DAY]).prop_map(Action::Wait).boxed()),
        (2, (0..CLIENTS).prop_map(Action::Crash).boxed()),
        (2, (0..KEYS).prop_map(Action::Expire).boxed()),
        (1, select(jumps.to_vec()).prop_map(Action::ClockJumps).boxed()),
        (3, redrives().boxed()),
    ];
    if faults.clock_goes_back {
        all.push((
            2,
            select(jumps.map(|jump| -jump).to_vec()).prop_map(Action::ClockJumps).boxed(),
        ));
    }
    if faults.writes_get_lost {
        let restores = (0..KEYS, any::<Index>());
        all.push((2, restores.prop_map(|(key, index)| Action::Restore { key, index }).boxed()));
    }
    Union::new_weighted(all)
}

fn acts() -> impl Strategy<Value = Action> {
    (0..CLIENTS, 0..KEYS, intents(), fates()).prop_map(|(client, key, intent, fate)| Action::Act {
        client,
        key,
        intent,
        fate,
    })
}

fn redrives() -> impl Strategy<Value = Action> {
    (0..KEYS, any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(key, force, stale)| Action::Redrive { key, force, stale })
}

fn intents() -> impl Strategy<Value = Intent> {
    let wishes = prop_oneof![
        4 => Just(Wish::Work),
        3 => Just(Wish::Renew),
        2 => Just(Wish::Succeed),
        3 => Just(Wish::Fail),
        1 => Just(Wish::GiveUp),
    ];
    let payloads = prop_oneof![12 => Just(1), 1 => Just(2)];
    let ttls = select(vec![SECOND / 2, 30 * SECOND, HOUR]);
    let delays = select(vec![0, SECOND, HOUR]);
    (wishes, payloads, ttls, delays, prop::bool::weighted(0.2))
        .prop_map(|(wish, payload, ttl, delay, last)| Intent { wish, payload, ttl, delay, last })
}

fn fates() -> impl Strategy<Value = Fate> {
    let travels = || prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(SECOND / 5)];
    let answers = prop_oneof![
        5 => travels().prop_map(Some),
        1 => Just(None),
    ];
    prop_oneof![
        8 => (travels(), answers)
            .prop_map(|(after, answered_after)| Fate::Arrives { after, answered_after }),
        2 => Just(Fate::Lost),
    ]
}
