//! Sends random batches to the store, and holds each answer and what is then stored against `step`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{Command, Grant, State, StoreKey};
use campanile_idempotency::Store;
use campanile_postgres::PgStore;
use fastrand::Rng;

use super::draw::{self, Sources};
use super::model::{self, Expiry, Slot, Stored};
use super::rows;
use crate::support::{self, Database};

/// As many as the largest batch has.
const KEYS: usize = 64;

/// Small batches are drawn from these, so that some keys are often in use.
const HOT_KEYS: usize = 6;

pub(super) struct Runner {
    store: PgStore,
    raw: tokio_postgres::Client,
    rng: Rng,
    seed: u64,
    keys: Vec<Key>,
    operations: usize,
    replies: BTreeMap<&'static str, usize>,
}

struct Key {
    key: StoreKey,
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
    pub(super) async fn new(database: &Database, seed: u64) -> Self {
        let key = |number: usize| {
            let key = support::key(format!("key {number}"));
            Key { key, slot: Slot::ABSENT, sent: Vec::new(), stale: None }
        };
        Self {
            store: database.store().await,
            raw: database.client().await,
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
    pub(super) async fn batch(&mut self) -> Result<(), Difference> {
        let chosen = self.choose();
        let now = self.clock().await;
        for &key in &chosen {
            if self.is_to_be_disturbed(key) {
                self.disturb(key, now).await;
            }
        }
        let high_floors = self.rng.u8(..4) == 0;
        let batch: Vec<(usize, Command)> =
            chosen.iter().map(|&key| (key, self.draw(key, now, high_floors))).collect();

        let commands = batch.iter().map(|(_, command)| command.clone()).collect();
        let answers = self.store.apply_batch(commands).await;
        let end = self.clock().await;
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
        self.compare_stored(&batch).await
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
        let Key { key, slot, sent, stale } = &mut self.keys[key];
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
        let one_in = match self.keys[key].slot.entry().map(|entry| entry.state()) {
            Some(State::Processing | State::Retrying) => 24,
            Some(State::Completed | State::Failed) => 5,
            None => 8,
        };
        self.rng.u8(..one_in) == 0
    }

    /// Puts something else under a key: nothing, another entry, one that is over.
    async fn disturb(&mut self, key: usize, now: u64) {
        const DAY: u64 = 86_400_000_000;
        let Key { key, slot, .. } = &mut self.keys[key];
        rows::delete(&self.raw, key.digest()).await;
        *slot = Slot::ABSENT;
        let kind = self.rng.u8(..10);
        if kind < 3 {
            return;
        }
        let mut bytes = rows::storable(draw::entry(&mut self.rng, now));
        let is_over = kind == 3;
        if is_over {
            // No token of such an entry is ahead of the clock, as `step` does not know it.
            let token = u64::from_be_bytes(*bytes[8..].first_chunk().unwrap()).min(now - 1);
            bytes[8..16].copy_from_slice(&token.to_be_bytes());
        }
        let until = if is_over { now - 1 } else { now + DAY };
        let until_time = SystemTime::UNIX_EPOCH + Duration::from_micros(until);
        rows::put(&self.raw, key.digest(), &bytes, until_time).await;
        if !is_over {
            let expiry = Expiry::At(i64::try_from(until / 1000).unwrap());
            *slot = Slot { stored: Stored::Text(bytes), expiry };
        }
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
    async fn compare_stored(&mut self, batch: &[(usize, Command)]) -> Result<(), Difference> {
        const ABSENT: (Stored, i64) = (Stored::Absent, -2);
        let keys: BTreeSet<usize> = batch.iter().map(|(key, _)| *key).collect();
        let digests: Vec<&[u8]> =
            keys.iter().map(|&key| &self.keys[key].key.digest()[..]).collect();
        let seen = rows::look(&self.raw, &digests).await;
        let seen: BTreeMap<_, _> = seen
            .into_iter()
            .map(|(key, until, bytes)| (key, (Stored::Text(bytes), until)))
            .collect();
        for key in keys {
            let Key { key: store_key, slot, .. } = &self.keys[key];
            let (stored, expiry) = seen.get(&store_key.digest()[..]).cloned().unwrap_or(ABSENT);
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
    async fn clock(&self) -> u64 {
        let row = self.raw.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
        micros(row.get(0))
    }

    fn differ(&self, text: String) -> Difference {
        Difference { seed: self.seed, operations: self.operations, text }
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}
