//! Sends random batches to the store, and holds each answer and what is then stored against `step`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{Command, Grant, State, StoreKey};
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use fastrand::Rng;
use tokio::runtime::Runtime;

use super::draw::{self, Sources};
use super::model::{self, Expiry, Slot, Stored};
use super::servers::Servers;
use crate::support;

/// As many as the largest batch has.
const KEYS: usize = 64;

/// Small batches are drawn from these, so that some keys are often in use.
const HOT_KEYS: usize = 6;

pub(super) struct Runner {
    runtime: Runtime,
    store: RedisStore,
    /// One for each server.
    raw: Vec<redis::Connection>,
    rng: Rng,
    seed: u64,
    keys: Vec<Key>,
    operations: usize,
    replies: BTreeMap<&'static str, usize>,
}

struct Key {
    key: StoreKey,
    name: Vec<u8>,
    /// The server that has it.
    server: usize,
    slot: Slot,
    /// The last commands, to be repeated.
    sent: Vec<Command>,
    stale: Option<Grant>,
}

/// Where the store and `step` differ.
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

impl Runner {
    pub(super) fn new(runtime: Runtime, store: RedisStore, servers: &Servers, seed: u64) -> Self {
        let key = |number: usize| {
            let key = support::key(format!("key {number}"));
            let (name, server) = (support::redis_key(&key), servers.owner(&key));
            Key { key, name, server, slot: Slot::ABSENT, sent: Vec::new(), stale: None }
        };
        Self {
            runtime,
            store,
            raw: servers.all().into_iter().map(support::raw).collect(),
            rng: Rng::with_seed(seed),
            seed,
            keys: (0..KEYS).map(key).collect(),
            operations: 0,
            replies: BTreeMap::new(),
        }
    }

    pub(super) fn operations(&self) -> usize {
        self.operations
    }

    /// How often each reply was given.
    pub(super) fn replies(&self) -> &BTreeMap<&'static str, usize> {
        &self.replies
    }

    pub(super) fn assert_every_reply_was_seen(&self) {
        assert_eq!(self.replies.len(), model::NAMES, "a kind of reply did not come up");
    }

    /// Draws a batch, sends it, and compares.
    pub(super) fn batch(&mut self) -> Result<(), Difference> {
        let chosen = self.choose();
        let now = self.clock();
        for &key in &chosen {
            if self.is_to_be_disturbed(key) {
                self.disturb(key, now);
            }
        }
        let high_floors = self.rng.u8(..4) == 0;
        let batch: Vec<(usize, Command)> =
            chosen.iter().map(|&key| (key, self.draw(key, now, high_floors))).collect();

        let commands = batch.iter().map(|(_, command)| command.clone()).collect();
        let answers = self.runtime.block_on(self.store.apply_batch(commands));
        let end = self.clock();
        for ((key, command), answer) in batch.iter().zip(answers) {
            let answer = answer.map_err(|error| self.differ(support::chain(&error)))?;
            let decided = micros(answer.now);
            if decided < now || decided > end {
                return Err(self.differ(format!("{decided} is not between {now} and {end}")));
            }
            let slot = &mut self.keys[*key].slot;
            let before = slot.clone();
            let reply = slot.apply(command, answer.now);
            if reply != answer.reply {
                return Err(self.differ(format!(
                    "{command:?} of {before:?} answered {:?}, not {reply:?}",
                    answer.reply
                )));
            }
            self.note_stale(*key, &before);
            self.operations += 1;
            *self.replies.entry(model::name(&reply)).or_default() += 1;
        }
        self.compare_stored(&batch)
    }

    /// The keys of a batch: distinct, but now and then one comes twice.
    fn choose(&mut self) -> Vec<usize> {
        let mut keys: Vec<usize> =
            if self.rng.bool() { (0..HOT_KEYS).collect() } else { (0..KEYS).collect() };
        self.rng.shuffle(&mut keys);
        keys.truncate(self.rng.usize(1..=keys.len()));
        if self.rng.u8(..8) == 0 {
            keys.extend_from_within(..keys.len().min(2));
        }
        keys
    }

    fn draw(&mut self, key: usize, now: u64, high_floors: bool) -> Command {
        let Key { key, slot, sent, stale, .. } = &mut self.keys[key];
        if !sent.is_empty() && self.rng.u8(..6) == 0 {
            return sent[self.rng.usize(..sent.len())].clone();
        }
        let sources = Sources { stored: slot.grant(), stale: *stale, now, high_floors };
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

    /// Most often where no command would change anything.
    fn is_to_be_disturbed(&mut self, key: usize) -> bool {
        let Slot { stored, .. } = &self.keys[key].slot;
        let one_in = match self.keys[key].slot.entry().map(|entry| entry.state()) {
            Some(State::Processing | State::Retrying) => 24,
            Some(State::Completed | State::Failed) => 5,
            None if *stored == Stored::Absent => 8,
            None => 5,
        };
        self.rng.u8(..one_in) == 0
    }

    /// Puts something else under a key: nothing, another entry, what is none, another type.
    fn disturb(&mut self, key: usize, now: u64) {
        let Key { name, slot, server, .. } = &mut self.keys[key];
        let raw = &mut self.raw[*server];
        let _: () = redis::cmd("DEL").arg(&*name).query(raw).unwrap();
        *slot = Slot::ABSENT;
        let bytes = match self.rng.u8(..10) {
            0..3 => return,
            3 => {
                let mut other =
                    if self.rng.bool() { redis::cmd("LPUSH") } else { redis::cmd("SADD") };
                let _: () = other.arg(&*name).arg("other").query(raw).unwrap();
                *slot = Slot { stored: Stored::OtherType, expiry: Expiry::At(-1) };
                return;
            }
            4..7 => draw::garbage(&mut self.rng, now),
            _ => draw::entry(&mut self.rng, now),
        };
        let _: () = redis::cmd("SET").arg(&*name).arg(&bytes).query(raw).unwrap();
        *slot = Slot { stored: Stored::Text(bytes), expiry: Expiry::At(-1) };
    }

    /// Remembers the grant that the entry had, once it has another.
    fn note_stale(&mut self, key: usize, before: &Slot) {
        let Key { slot, stale, .. } = &mut self.keys[key];
        let grant = |slot: &Slot| {
            let entry = slot.entry()?;
            Some(Grant { token: entry.token(), owner: entry.owner()? })
        };
        let (old, new) = (grant(before), grant(slot));
        if old.is_some() && old != new {
            *stale = old;
        }
    }

    /// Compares what is stored, and until when.
    fn compare_stored(&mut self, batch: &[(usize, Command)]) -> Result<(), Difference> {
        let keys: BTreeSet<usize> = batch.iter().map(|(key, _)| *key).collect();
        let mut looks: Vec<_> = self.raw.iter().map(|_| redis::pipe()).collect();
        for &key in &keys {
            let Key { name, server, .. } = &self.keys[key];
            // MGET shows another type as absent.
            looks[*server].cmd("MGET").arg(name).cmd("PEXPIRETIME").arg(name);
        }
        let seen = looks.iter().zip(&mut self.raw).map(|(look, raw)| {
            let seen: Vec<redis::Value> =
                if look.is_empty() { Vec::new() } else { look.query(raw).unwrap() };
            seen.into_iter()
        });
        let mut seen: Vec<_> = seen.collect();
        for key in keys {
            let seen = &mut seen[self.keys[key].server];
            let mut next = || seen.next().unwrap();
            let [text] = redis::from_redis_value::<[Option<Vec<u8>>; 1]>(next()).unwrap();
            let expiry: i64 = redis::from_redis_value(next()).unwrap();
            let stored = match text {
                Some(text) => Stored::Text(text),
                None if expiry == -2 => Stored::Absent,
                None => Stored::OtherType,
            };
            let slot = &self.keys[key].slot;
            if stored != slot.stored || !slot.expires_at(expiry) {
                let commands: Vec<_> = batch.iter().filter(|(of, _)| *of == key).collect();
                return Err(self.differ(format!(
                    "{commands:?} left {stored:?}, kept until {expiry}, not {slot:?}"
                )));
            }
            self.keys[key].slot.expiry = Expiry::At(expiry);
        }
        Ok(())
    }

    /// The server's, in µs.
    fn clock(&mut self) -> u64 {
        let (seconds, rest): (u64, u64) = redis::cmd("TIME").query(&mut self.raw[0]).unwrap();
        seconds * 1_000_000 + rest
    }

    fn differ(&self, text: String) -> Difference {
        Difference { seed: self.seed, operations: self.operations, text }
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(since, Duration::from_micros(since.as_micros() as u64), "finer than Redis's clock");
    since.as_micros() as u64
}
