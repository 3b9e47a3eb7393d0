//! Draws what is sent to a store, and compares its answers and entries with `step`. Shared by the
//! tests of every store.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, FencingToken, Grant, State, StoreKey};
use campanile_idempotency::StoreError;
use fastrand::Rng;

use super::draw::{self, Sources};
use super::model::{self, Expiry, KeyModel, Stored};
use crate::support;

/// The size of the largest batch.
const KEYS: usize = 64;

/// Small batches are drawn from these keys, so that some keys are used often.
const HOT_KEYS: usize = 6;

pub(super) struct Fuzzer {
    pub(super) rng: Rng,
    pub(super) keys: Vec<Key>,
    seed: u64,
    operations: usize,
    replies: BTreeMap<&'static str, usize>,
}

pub(super) struct Key {
    pub(super) key: StoreKey,
    pub(super) model: KeyModel,
    /// The last commands, which may be repeated.
    sent: Vec<Command>,
    stale: Option<Grant>,
}

/// How far the clock of a server may go back, in µs.
const CLOCK_TOLERANCE: u64 = 10_000;

/// A difference between the store and `step`.
#[derive(Debug)]
pub(super) struct Difference {
    seed: u64,
    operations: usize,
    text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, operations, text } = self;
        write!(f, "difference after {operations} operations, CAMPANILE_SEED={seed}: {text}")
    }
}

impl Fuzzer {
    pub(super) fn new(seed: u64) -> Self {
        let key = |number: usize| {
            let key = support::key(format!("key {number}"));
            Key { key, model: KeyModel::ABSENT, sent: Vec::new(), stale: None }
        };
        Self {
            rng: Rng::with_seed(seed),
            keys: (0..KEYS).map(key).collect(),
            seed,
            operations: 0,
            replies: BTreeMap::new(),
        }
    }

    pub(super) fn operations(&self) -> usize {
        self.operations
    }

    /// The number of times that each reply was given.
    pub(super) fn replies(&self) -> &BTreeMap<&'static str, usize> {
        &self.replies
    }

    pub(super) fn assert_every_reply_was_seen(&self) {
        assert_eq!(self.replies.len(), model::REPLY_KINDS, "some kinds of reply were never seen");
    }

    /// Draws the keys of a batch.
    pub(super) fn choose(&mut self) -> Vec<usize> {
        let mut keys: Vec<usize> =
            if self.rng.bool() { (0..HOT_KEYS).collect() } else { (0..KEYS).collect() };
        self.rng.shuffle(&mut keys);
        keys.truncate(self.rng.usize(1..=keys.len()));
        keys
    }

    /// Draws whether to replace the value of a key. Most likely for a key that no command would
    /// change.
    pub(super) fn should_overwrite(&mut self, key: usize) -> bool {
        let KeyModel { stored, .. } = &self.keys[key].model;
        let one_in = match self.keys[key].model.entry().map(|entry| entry.state()) {
            Some(State::Processing | State::Retrying) => 24,
            Some(State::Completed | State::Failed) => 5,
            None if *stored == Stored::Absent => 8,
            None => 5,
        };
        self.rng.u8(..one_in) == 0
    }

    /// Draws a command for each of these keys.
    pub(super) fn draw(&mut self, chosen: &[usize], now: u64) -> Vec<(usize, Command)> {
        let floor = draw::floor(&mut self.rng, now);
        chosen.iter().map(|&key| (key, self.draw_one(key, now, floor))).collect()
    }

    fn draw_one(&mut self, key: usize, now: u64, floor: FencingToken) -> Command {
        let Key { key, model, sent, stale } = &mut self.keys[key];
        if !sent.is_empty() && self.rng.u8(..6) == 0 {
            return sent[self.rng.usize(..sent.len())].clone();
        }
        let sources = Sources { stored: model.grant(), stale: *stale, now, floor };
        let command = Command {
            key: key.clone(),
            operation: draw::operation(&mut self.rng, &sources),
            retention: draw::retention(&mut self.rng),
        };
        if sent.len() == 6 {
            sent.remove(0);
        }
        sent.push(command.clone());
        command
    }

    /// Compares the answers, which must have been decided between `now` and `end`, in µs. On a busy
    /// machine, a script of Valkey saw a time up to 1 ms later than a `TIME` after it.
    pub(super) fn compare_answers(
        &mut self,
        batch: &[(usize, Command)],
        answers: Vec<Result<Answer, StoreError>>,
        now: u64,
        end: u64,
    ) -> Result<(), Difference> {
        for ((key, command), answer) in batch.iter().zip(answers) {
            let answer = answer.map_err(|error| self.differ(support::chain(&error)))?;
            let decided = micros(answer.now);
            if decided < now || decided > end + CLOCK_TOLERANCE {
                return Err(self.differ(format!("{decided} is not between {now} and {end}")));
            }
            let model = &mut self.keys[*key].model;
            let before = model.clone();
            let reply = model.apply(command, answer.now);
            if reply != answer.reply {
                return Err(self.differ(format!(
                    "{command:?} of {before:?} answered {:?}, not {reply:?}",
                    answer.reply
                )));
            }
            self.note_stale(*key, &before);
            self.operations += 1;
            *self.replies.entry(model::reply_kind(&reply)).or_default() += 1;
        }
        Ok(())
    }

    /// Compares the value of a key after this batch, and its expiry in ms.
    pub(super) fn compare_stored(
        &mut self,
        batch: &[(usize, Command)],
        key: usize,
        stored: Stored,
        expiry: i64,
    ) -> Result<(), Difference> {
        let model = &self.keys[key].model;
        if stored != model.stored || !model.expires_at(expiry) {
            let commands: Vec<_> = batch.iter().filter(|(of, _)| *of == key).collect();
            return Err(self.differ(format!(
                "{commands:?} left {stored:?}, kept until {expiry}, not {model:?}"
            )));
        }
        self.keys[key].model.expiry = Expiry::At(expiry);
        Ok(())
    }

    /// Remembers the previous grant of an entry once the entry has another.
    fn note_stale(&mut self, key: usize, before: &KeyModel) {
        let Key { model, stale, .. } = &mut self.keys[key];
        let grant = |model: &KeyModel| {
            let entry = model.entry()?;
            Some(Grant { token: entry.token(), owner: entry.owner()? })
        };
        let (old, new) = (grant(before), grant(model));
        if old.is_some() && old != new {
            *stale = old;
        }
    }

    fn differ(&self, text: String) -> Difference {
        Difference { seed: self.seed, operations: self.operations, text }
    }
}

pub(super) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let micros = u64::try_from(since.as_micros()).unwrap();
    assert_eq!(since, Duration::from_micros(micros), "finer than the server's clock");
    micros
}
