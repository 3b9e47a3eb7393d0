//! The functions of the schema, run as `step` on the entries. The differential tests hold both equal.

use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use campanile_core::{
    Entry, FencingToken, Fingerprint, Grant, Operation, Owner, Reply, State, reply, step,
};
use campanile_test::simulation::read_details;

use super::planted::{Bug, is_planted};
use crate::wire::{
    BOOL, BOOL_ARRAY, BYTEA, BYTEA_ARRAY, CHAR, Cells, Column, INT2, INT4, INT4_ARRAY, INT8,
    INT8_ARRAY, TEXT, TIMESTAMPTZ,
};

/// The first 16 bytes of a key's hash.
pub(super) type Digest = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Acquire,
    Renew,
    Complete,
    Adopt,
    Fail,
    Release,
    Cancel,
    GiveUp,
    RecordStep,
    Sweep,
}

use Function::{Acquire, Adopt, Cancel, Complete, Fail, GiveUp, RecordStep, Release, Renew, Sweep};

impl Function {
    /// The function that a statement calls.
    pub(super) fn find(statement: &str) -> Self {
        let name = statement.split_once("campanile.").and_then(|(_, call)| call.split_once('('));
        match name.map(|(name, _)| name) {
            Some("acquire") => Acquire,
            Some("renew") => Renew,
            Some("complete") => Complete,
            Some("adopt") => Adopt,
            Some("fail") => Fail,
            Some("release") => Release,
            Some("cancel") => Cancel,
            Some("give_up") => GiveUp,
            Some("record_step") => RecordStep,
            Some("sweep") => Sweep,
            _ => panic!("the simulated server does not know {statement}"),
        }
    }

    pub(super) const fn parameters(self) -> &'static [u32] {
        const KEYS: u32 = BYTEA_ARRAY;
        const LONGS: u32 = INT8_ARRAY;
        match self {
            Acquire => &[TEXT, KEYS, LONGS, LONGS, LONGS, BYTEA_ARRAY, INT8, INT4, INT8],
            Renew => &[TEXT, KEYS, LONGS, LONGS, INT8, INT8],
            Complete => &[TEXT, KEYS, LONGS, LONGS, BYTEA_ARRAY, BYTEA_ARRAY, INT8],
            Adopt => &[TEXT, KEYS, LONGS, LONGS, INT4_ARRAY, LONGS, BYTEA_ARRAY, BYTEA_ARRAY, INT8],
            Fail => &[TEXT, KEYS, LONGS, LONGS, LONGS, BOOL_ARRAY, BYTEA_ARRAY, INT8],
            Release => &[TEXT, KEYS, LONGS, LONGS, BOOL, INT8],
            Cancel => &[TEXT, KEYS, LONGS, INT8],
            GiveUp => &[TEXT, KEYS, LONGS, LONGS, BYTEA_ARRAY, INT8],
            RecordStep => &[TEXT, KEYS, LONGS, LONGS, BYTEA_ARRAY, BYTEA_ARRAY, INT8],
            Sweep => &[INT8, INT4],
        }
    }

    pub(super) fn columns(self) -> &'static [Column] {
        const SWEPT: &[Column] = &[("deleted", INT8), ("next", INT8)];
        match self {
            Sweep => SWEPT,
            // The result of the others has neither steps nor details.
            Acquire => ANSWER,
            RecordStep => &ANSWER[..ANSWER.len() - 1],
            _ => &ANSWER[..ANSWER.len() - 2],
        }
    }
}

const ANSWER: &[Column] = &[
    ("place", INT4),
    ("now", TIMESTAMPTZ),
    ("token", INT8),
    ("owner", INT8),
    ("fingerprint", INT8),
    ("created", TIMESTAMPTZ),
    ("at", TIMESTAMPTZ),
    ("attempt", INT4),
    ("interrupts", INT2),
    ("give_ups", INT2),
    ("state", CHAR),
    ("giving_up", BOOL),
    ("permanent_failure", BOOL),
    ("released", BOOL),
    ("error", BYTEA),
    ("reply", BYTEA),
    ("steps", BYTEA),
    ("details", BYTEA),
];

/// A row of an answer: the place of the key from 1, or 0 for the clock, and the entry, if any.
pub(super) fn row(
    function: Function,
    place: usize,
    now: SystemTime,
    entry: Option<&Entry>,
) -> Cells {
    let micros = |time: SystemTime| {
        const EPOCH: i64 = 946_684_800_000_000; // 2000
        let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        (since.as_micros() as i64 - EPOCH).to_be_bytes().to_vec()
    };
    let mut cells = vec![Some((place as i32).to_be_bytes().to_vec()), Some(micros(now))];
    if let Some(entry) = entry {
        let state = match entry.state() {
            State::Processing => b'P',
            State::Retrying => b'R',
            State::Completed => b'C',
            State::Failed => b'F',
        };
        cells.extend([
            Some(entry.token().get().to_be_bytes().to_vec()),
            entry.owner().map(|owner| owner.get().to_be_bytes().to_vec()),
            entry.fingerprint().map(|print| print.to_bits().to_be_bytes().to_vec()),
            Some(micros(entry.created())),
            Some(micros(entry.at())),
            Some(i32::from(entry.attempt()).to_be_bytes().to_vec()),
            Some(i16::from(entry.interrupts()).to_be_bytes().to_vec()),
            Some(i16::from(entry.give_ups()).to_be_bytes().to_vec()),
            Some(vec![state]),
            Some(vec![(entry.is_give_up() && !is_planted(Bug::GiveUpFlagOmitted)).into()]),
            Some(vec![entry.has_permanent_failure().into()]),
            Some(vec![entry.is_released().into()]),
            entry.error().map(|error| error.as_bytes().to_vec()),
            entry.reply().map(|reply| reply.to_vec()),
            entry.steps().map(|steps| steps.as_bytes().to_vec()),
            entry.details().map(|details| details.as_bytes().to_vec()),
        ]);
    }
    cells.resize(function.columns().len(), None);
    cells
}

/// A call of a function.
pub(super) struct FunctionCall {
    pub(super) function: Function,
    /// The arguments in their binary format.
    arguments: Vec<Bytes>,
}

impl FunctionCall {
    pub(super) fn new(function: Function, arguments: Vec<Bytes>) -> Self {
        assert_eq!(arguments.len(), function.parameters().len());
        Self { function, arguments }
    }

    /// The keys, in the order of the call.
    pub(super) fn keys(&self) -> Vec<Digest> {
        if self.function == Sweep {
            return Vec::new();
        }
        let digest = |item: Option<Bytes>| Digest::try_from(&*item.expect("a key"));
        items(&self.arguments[1]).into_iter().map(|item| digest(item).expect("16 bytes")).collect()
    }

    /// The item of an array argument for the key at this index.
    fn item(&self, parameter: usize, index: usize) -> Option<Bytes> {
        items(&self.arguments[parameter]).swap_remove(index)
    }

    fn long(&self, parameter: usize, index: usize) -> Option<u64> {
        Some(self.item(parameter, index)?.get_u64())
    }

    fn micros(&self, parameter: usize) -> Duration {
        Duration::from_micros(self.arguments[parameter].clone().get_u64())
    }

    fn owner(&self, parameter: usize, index: usize) -> Owner {
        Owner::new(self.long(parameter, index).expect("a nonce")).expect("not zero")
    }

    fn fingerprint(&self, parameter: usize, index: usize) -> Option<Fingerprint> {
        self.long(parameter, index).and_then(Fingerprint::from_bits)
    }

    fn text(&self, parameter: usize, index: usize) -> Box<str> {
        let text = self.item(parameter, index).unwrap_or_default();
        String::from_utf8(text.to_vec()).expect("UTF-8").into()
    }

    /// The operation on the key at this index.
    pub(super) fn operation(&self, index: usize) -> Operation {
        let token =
            |index| FencingToken::new(self.long(2, index).expect("a token")).expect("valid");
        let grant = |index| Grant { token: token(index), owner: self.owner(3, index) };
        let details = |parameter| self.item(parameter, index).and_then(|it| read_details(&it));
        match self.function {
            Acquire => Operation::Acquire {
                owner: self.owner(2, index),
                fingerprint: self.fingerprint(3, index),
                floor: FencingToken::new(self.long(4, index).expect("a floor")).expect("a token"),
                details: details(5),
                ttl: self.micros(6),
                max_attempts: self.arguments[7].clone().get_i32() as u16,
            },
            Renew => Operation::Renew { grant: grant(index), ttl: self.micros(4) },
            Complete => Operation::Complete {
                grant: grant(index),
                attempt: 0,
                fingerprint: None,
                reply: self.item(4, index),
                details: details(5),
            },
            Adopt => Operation::Complete {
                grant: grant(index),
                attempt: self.item(4, index).expect("an attempt").get_i32() as u16,
                fingerprint: self.fingerprint(5, index),
                reply: self.item(6, index),
                details: details(7),
            },
            Fail => Operation::Fail {
                grant: grant(index),
                delay: Duration::from_micros(self.long(4, index).expect("a delay")),
                last: self.item(5, index).expect("a flag").get_u8() != 0,
                error: self.text(6, index),
            },
            Release => Operation::Release { grant: grant(index), ran: self.arguments[4][0] != 0 },
            Cancel => Operation::Cancel { owner: self.owner(2, index) },
            GiveUp => Operation::GiveUp { grant: grant(index), reason: self.text(4, index) },
            RecordStep => Operation::RecordStep {
                grant: grant(index),
                name: self.text(4, index),
                result: self.item(5, index).expect("a result"),
            },
            Sweep => unreachable!("it has no keys"),
        }
    }

    /// Runs an operation of this call. Returns the entry after it, the reply of `step`, or `None` if
    /// nothing was decided, and whether it had its usual outcome.
    pub(super) fn run(
        &self,
        operation: &Operation,
        before: Option<Entry>,
        now: SystemTime,
    ) -> (Option<Entry>, Option<Reply>, bool) {
        match (self.function, before) {
            // Another function creates the entry.
            (Complete, None) => (None, None, false),
            (Adopt, Some(entry)) => {
                let reply = reply(Some(&entry), operation, now);
                (Some(entry), Some(reply), false)
            }
            (function, before) => {
                let is_new = before.is_none();
                let is_locked = before.as_ref().is_some_and(|it| it.state() == State::Processing);
                let (after, reply) = step(before, operation, now);
                let is_usual = match function {
                    Acquire | Adopt => is_new,
                    Renew => reply == Reply::Renewed,
                    Complete => is_locked && reply == Reply::Completed,
                    Fail => is_locked && reply == Reply::Retrying,
                    Release | Cancel => is_locked && reply == Reply::Released,
                    GiveUp => is_locked && reply == Reply::GivenUp,
                    RecordStep => reply == Reply::StepRecorded,
                    Sweep => unreachable!("it has no keys"),
                };
                (after, Some(reply), is_usual)
            }
        }
    }
}

/// The items of an array with one dimension.
fn items(array: &Bytes) -> Vec<Option<Bytes>> {
    const HEADER: usize = 20; // dimensions, flags, type, length, lower bound
    let mut rest = array.clone();
    assert_eq!(rest.get_i32(), 1, "an array with one dimension");
    rest.advance(8);
    let count = rest.get_i32();
    let mut rest = array.slice(HEADER..);
    let mut item = || {
        let length = usize::try_from(rest.get_i32()).ok()?;
        Some(rest.split_to(length))
    };
    (0..count).map(|_| item()).collect()
}
