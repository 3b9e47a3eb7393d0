//! Entries and commands in a few bytes, so that many states fit into memory.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::limits::MAX_STEPS_BYTES;
use campanile_core::{Entry, FencingToken, Fingerprint, Grant, Operation, Owner, Steps};

use crate::raw::{ERROR, FAILED, NO_TAIL, RETRYING, Raw};

/// The model's unit of time: half of the longest lock, so that a clock that is set back by one leaves
/// a lock that is clamped.
pub(crate) const TICK: Duration = Duration::from_secs(30 * 60);
const TICK_MICROS: u64 = 30 * 60 * 1_000_000;

/// The TTL of every lock, in ticks.
pub(crate) const TTL: i16 = 2;

/// The backoff of every failure, in ticks.
pub(crate) const DELAY: i16 = 1;

/// More than the retention of attempts and the longest backoff, in ticks: 25 hours.
pub(crate) const LONG: i16 = 50;

/// A fencing token: the tick of the store's clock at which it was granted, and how many tokens of that
/// tick are smaller. The order is that of the tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Token(i16);

/// How many tokens a tick can have.
const TOKENS_PER_TICK: i16 = 16;

impl Token {
    /// No token: it is below every other.
    pub(crate) const ZERO: Self = Self(i16::MIN);

    /// The number by which a story names the token.
    pub(crate) fn number(self) -> i16 {
        let (tick, extra) =
            (self.0.div_euclid(TOKENS_PER_TICK), self.0.rem_euclid(TOKENS_PER_TICK));
        if self < Self(i16::MIN + TOKENS_PER_TICK) {
            extra
        } else {
            1000 + tick * TOKENS_PER_TICK + extra
        }
    }
}

/// Converts ticks to the times of `step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    /// Tick 0, in microseconds since 1970.
    pub(crate) origin: u64,
}

impl Calendar {
    pub(crate) fn micros(self, tick: i16) -> u64 {
        self.origin.saturating_add_signed(i64::from(tick) * TICK_MICROS as i64)
    }

    pub(crate) fn time(self, tick: i16) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.micros(tick))
    }

    fn tick(self, micros: u64) -> i16 {
        let distance = micros as i64 - self.origin as i64;
        i16::try_from(distance.div_euclid(TICK_MICROS as i64)).expect("near the origin")
    }

    pub(crate) fn pack_token(self, token: u64) -> Token {
        if token < TOKENS_PER_TICK as u64 {
            return Token(i16::MIN + token as i16);
        }
        let tick = self.tick(token);
        let extra = i16::try_from(token - self.micros(tick)).expect("few tokens per tick");
        assert!(extra < TOKENS_PER_TICK);
        Token(tick * TOKENS_PER_TICK + extra)
    }

    pub(crate) fn token(self, token: Token) -> FencingToken {
        let extra = token.0.rem_euclid(TOKENS_PER_TICK) as u64;
        let micros = if token < Token(i16::MIN + TOKENS_PER_TICK) {
            0
        } else {
            self.micros(token.0.div_euclid(TOKENS_PER_TICK))
        };
        FencingToken::new(micros + extra).expect("granted or read before")
    }
}

/// An entry, or none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Slot {
    /// Zero if there is no entry.
    pub(crate) state: u8,
    pub(crate) flags: [bool; 3],
    pub(crate) attempt: u16,
    pub(crate) interrupts: u8,
    pub(crate) give_ups: u8,
    pub(crate) owner: u8,
    /// Zero if there is none.
    pub(crate) fingerprint: u8,
    /// The results of the handler's steps: the attempt that recorded each, or zero.
    pub(crate) steps: [u8; 2],
    /// The kind of tail, and the payload that its text names.
    pub(crate) tail: (u8, u8),
    pub(crate) token: Token,
    pub(crate) at: i16,
}

impl Slot {
    pub(crate) const EMPTY: Self = Self {
        state: 0,
        flags: [false; 3],
        attempt: 0,
        interrupts: 0,
        give_ups: 0,
        owner: 0,
        fingerprint: 0,
        steps: [0; 2],
        tail: (NO_TAIL, 0),
        token: Token::ZERO,
        at: 0,
    };

    /// An entry that was released at tick 0, with these counters.
    pub(crate) fn released(attempt: u16, interrupts: u8, give_ups: u8) -> Self {
        Self {
            state: RETRYING,
            flags: [false, false, true],
            attempt,
            interrupts,
            give_ups,
            owner: 1,
            fingerprint: 1,
            token: Token(-TOKENS_PER_TICK),
            ..Self::EMPTY
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.state > RETRYING && self.state <= FAILED
    }

    pub(crate) fn of(entry: Option<&Entry>, calendar: Calendar) -> Self {
        let Some(entry) = entry else {
            return Self::EMPTY;
        };
        let raw = Raw::of(entry);
        Self {
            state: raw.state,
            flags: [raw.giving_up, raw.permanent_failure, raw.released],
            attempt: raw.attempt,
            interrupts: raw.interrupts,
            give_ups: raw.give_ups,
            owner: raw.owner as u8,
            fingerprint: raw.fingerprint as u8,
            steps: step_results(entry.steps()),
            tail: (raw.kind, raw.tail.last().map_or(0, |digit| digit - b'0')),
            token: calendar.pack_token(raw.token),
            at: calendar.tick(raw.at),
        }
    }

    /// The entry, with the time of its creation replaced by zero: no operation depends on it.
    pub(crate) fn entry(&self, calendar: Calendar) -> Option<Entry> {
        (self.state != 0).then(|| {
            let [giving_up, permanent_failure, released] = self.flags;
            let (kind, payload) = self.tail;
            let tail = match kind {
                NO_TAIL => Vec::new(),
                ERROR => error_text(payload).into_bytes(),
                _ => reply_text(payload).into_bytes(),
            };
            Raw {
                state: self.state,
                giving_up,
                permanent_failure,
                released,
                attempt: self.attempt,
                interrupts: self.interrupts,
                give_ups: self.give_ups,
                kind,
                token: calendar.token(self.token).get(),
                owner: self.owner.into(),
                fingerprint: self.fingerprint.into(),
                created: 0,
                at: calendar.micros(self.at),
                steps: self.encoded_steps(),
                tail,
            }
            .entry()
        })
    }

    fn encoded_steps(&self) -> Vec<u8> {
        let steps = STEPS.iter().zip(self.steps).filter(|(_, result)| *result != 0);
        steps.flat_map(|(name, result)| encoded_step(name, &[result])).collect()
    }
}

/// The text of an error or a reason, which names its payload.
fn error_text(payload: u8) -> String {
    format!("error of payload {payload}")
}

/// The names of the handler's steps, in the order in which it runs them.
const STEPS: [&str; 2] = ["s", "t"];

/// The size of a result that is the largest permitted for an entry without other steps.
const LARGE: usize = MAX_STEPS_BYTES - "#t####".len();

/// The results of the handler's steps: the attempt that recorded each, or zero.
pub(crate) fn step_results(steps: Option<&Steps>) -> [u8; 2] {
    STEPS.map(|name| steps.and_then(|steps| steps.get(name)).map_or(0, |result| result[0]))
}

/// A step as an entry has it.
pub(crate) fn encoded_step(name: &str, result: &[u8]) -> Vec<u8> {
    let mut step = vec![name.len() as u8];
    step.extend(name.as_bytes());
    step.extend((result.len() as u32).to_be_bytes());
    step.extend(result);
    step
}

/// The reply of a handler, which names its payload.
pub(crate) fn reply_text(payload: u8) -> String {
    format!("reply to payload {payload}")
}

/// A kind of command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Verb {
    /// No command.
    None,
    Acquire,
    Renew,
    /// The result of the first step, which is the number of the attempt.
    RecordFirst,
    /// The result of the second step, also the number of the attempt.
    RecordSecond,
    /// A result of the second step that is too large behind the first.
    RecordLarge,
    Complete,
    Fail,
    /// A permanent failure.
    FailLast,
    /// The failure of a give-up lock, which has no text.
    FailGiveUp,
    /// The release of a lock whose handler had begun.
    ReleaseRan,
    Release,
    Cancel,
    GiveUp,
    Redrive,
    RedriveForced,
}

/// A command on its way to the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Command {
    pub(crate) verb: Verb,
    pub(crate) owner: u8,
    /// Zero is a payload without a fingerprint.
    pub(crate) payload: u8,
    pub(crate) attempt: u16,
    pub(crate) token: Token,
    pub(crate) floor: Token,
}

impl Command {
    pub(crate) const NONE: Self = Self {
        verb: Verb::None,
        owner: 0,
        payload: 0,
        attempt: 0,
        token: Token::ZERO,
        floor: Token::ZERO,
    };

    pub(crate) fn operation(&self, calendar: Calendar, max_attempts: u16) -> Operation {
        let token = calendar.token(self.token);
        let owner = || Owner::new(self.owner.into()).expect("a nonce is not zero");
        let grant = || Grant { token, owner: owner() };
        let fingerprint = Fingerprint::from_bits(self.payload.into());
        let ttl = TICK * TTL as u32;
        let delay = TICK * DELAY as u32;
        let error: Box<str> = error_text(self.payload).into();
        let record = |step: usize, len| Operation::RecordStep {
            grant: grant(),
            name: STEPS[step].into(),
            result: Bytes::from(vec![self.attempt as u8; len]),
        };
        match self.verb {
            Verb::None => unreachable!("only commands are sent"),
            Verb::Acquire => Operation::Acquire {
                owner: owner(),
                ttl,
                max_attempts,
                fingerprint,
                floor: calendar.token(self.floor),
                details: None,
            },
            Verb::Renew => Operation::Renew { grant: grant(), ttl },
            Verb::RecordFirst => record(0, 1),
            Verb::RecordSecond => record(1, 1),
            Verb::RecordLarge => record(1, LARGE),
            Verb::Complete => Operation::Complete {
                grant: grant(),
                attempt: self.attempt,
                fingerprint,
                reply: Some(Bytes::from(reply_text(self.payload))),
                details: None,
            },
            Verb::Fail => Operation::Fail { grant: grant(), delay, last: false, error },
            Verb::FailLast => Operation::Fail { grant: grant(), delay, last: true, error },
            Verb::FailGiveUp => {
                Operation::Fail { grant: grant(), delay, last: true, error: "".into() }
            }
            Verb::ReleaseRan => Operation::Release { grant: grant(), ran: true },
            Verb::Release => Operation::Release { grant: grant(), ran: false },
            Verb::Cancel => Operation::Cancel { owner: owner() },
            Verb::GiveUp => Operation::GiveUp { grant: grant(), reason: error },
            Verb::Redrive => Operation::Redrive { token, force: false },
            Verb::RedriveForced => Operation::Redrive { token, force: true },
        }
    }
}
