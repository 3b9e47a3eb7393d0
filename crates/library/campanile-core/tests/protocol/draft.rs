//! Entries as the tests write them: every field set by hand, and encoded independently of the code
//! under test.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, FencingToken, Fingerprint, Grant, Owner, State};

/// The time of the store's clock in the tests, in microseconds since 1970.
pub(crate) const NOW: u64 = 1_800_000_000_000_000;
pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;

/// The token of the entry's grant in most tests: it was acquired ten seconds ago.
pub(crate) const TOKEN: u64 = NOW - 10 * SECOND;
pub(crate) const ME: u64 = 0xA;
pub(crate) const OTHER: u64 = 0xB;

/// The fields of an entry as they are stored. `at` is in microseconds and `created` in seconds
/// since 1970; a zero `owner` or `fingerprint` means none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) state: State,
    pub(crate) giving_up: bool,
    pub(crate) permanent_failure: bool,
    pub(crate) released: bool,
    pub(crate) attempt: u16,
    pub(crate) interrupts: u8,
    pub(crate) give_ups: u8,
    pub(crate) kind: u8,
    pub(crate) spare: u8,
    pub(crate) token: u64,
    pub(crate) owner: u64,
    pub(crate) fingerprint: u64,
    pub(crate) created: u32,
    pub(crate) at: u64,
    pub(crate) tail: Vec<u8>,
}

pub(crate) const NO_TAIL: u8 = 0;
pub(crate) const ERROR: u8 = 1;
pub(crate) const REPLY: u8 = 2;
pub(crate) const STEPS: u8 = 5;

impl Draft {
    /// The first grant of `ME`, acquired at `TOKEN`, with no flags, interrupts, give-ups,
    /// fingerprint or tail.
    pub(crate) fn new(state: State, at: u64) -> Self {
        Self {
            state,
            giving_up: false,
            permanent_failure: false,
            released: false,
            attempt: 1,
            interrupts: 0,
            give_ups: 0,
            kind: NO_TAIL,
            spare: 0,
            token: TOKEN,
            owner: ME,
            fingerprint: 0,
            created: (TOKEN / SECOND) as u32,
            at,
            tail: Vec::new(),
        }
    }

    pub(crate) fn with_error(self, text: &str) -> Self {
        Self { kind: ERROR, tail: text.into(), ..self }
    }

    pub(crate) fn with_reply(self, reply: &[u8]) -> Self {
        Self { kind: REPLY, tail: reply.into(), ..self }
    }

    /// Adds a recorded step to an entry without any.
    pub(crate) fn with_step(self, name: &str, result: &[u8]) -> Self {
        let tail = [&stored_step(name, result)[..], &[self.kind], &self.tail].concat();
        Self { kind: STEPS, tail, ..self }
    }

    pub(crate) fn without_tail(self) -> Self {
        Self { kind: NO_TAIL, tail: Vec::new(), ..self }
    }

    /// Encodes the entry in the protocol's byte layout.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let state = match self.state {
            State::Processing => 1,
            State::Retrying => 2,
            State::Completed => 3,
            State::Failed => 4,
        };
        let flags = 8 * u8::from(self.giving_up)
            + 16 * u8::from(self.permanent_failure)
            + 32 * u8::from(self.released);
        let [high, low] = self.attempt.to_be_bytes();
        let mut bytes = vec![0xC1, state + flags, high, low];
        bytes.extend([self.interrupts, self.give_ups, self.kind, self.spare]);
        bytes.extend(self.token.to_be_bytes());
        bytes.extend(self.owner.to_be_bytes());
        bytes.extend(self.fingerprint.to_be_bytes());
        bytes.extend(self.created.to_be_bytes());
        bytes.extend(self.at.to_be_bytes());
        bytes.extend(&self.tail);
        bytes
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry::from_bytes(&self.bytes()).expect("a draft is readable")
    }
}

/// What is stored before the kind of an entry's other tail, if this step is recorded.
pub(crate) fn stored_step(name: &str, result: &[u8]) -> Vec<u8> {
    let mut step = vec![name.len() as u8];
    step.extend(name.as_bytes());
    step.extend((result.len() as u32).to_be_bytes());
    step.extend(result);
    [&(step.len() as u32).to_be_bytes()[..], &step].concat()
}

/// Converts microseconds since 1970 to a time.
pub(crate) fn time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

pub(crate) fn token(value: u64) -> FencingToken {
    FencingToken::new(value).expect("below 2^53")
}

pub(crate) fn owner(bits: u64) -> Owner {
    Owner::new(bits).expect("not zero")
}

pub(crate) fn fingerprint(bits: u64) -> Fingerprint {
    Fingerprint::from_bits(bits).expect("not zero")
}

pub(crate) fn grant(token: u64, owner: u64) -> Grant {
    Grant { token: self::token(token), owner: self::owner(owner) }
}

/// The grant held by a new draft.
pub(crate) fn my_grant() -> Grant {
    grant(TOKEN, ME)
}
