//! Sends random batches to the store, and reads from Redis what is stored afterwards.

use std::collections::BTreeSet;

use campanile_core::Command;
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use tokio::runtime::Runtime;

use super::draw;
use super::fuzzer::{Difference, Fuzzer};
use super::model::{Expiry, KeyModel, Stored};
use super::servers::Servers;
use crate::support;

pub(super) struct Runner {
    pub(super) fuzzer: Fuzzer,
    runtime: Runtime,
    store: RedisStore,
    /// One for each server.
    raw: Vec<redis::Connection>,
    locations: Vec<KeyLocation>,
}

/// Where the entry of a key is stored.
struct KeyLocation {
    name: Vec<u8>,
    /// The index of the server that has the key.
    server: usize,
}

impl Runner {
    pub(super) fn new(runtime: Runtime, store: RedisStore, servers: &Servers, seed: u64) -> Self {
        let fuzzer = Fuzzer::new(seed);
        let keys = fuzzer.keys.iter().map(|key| &key.key);
        let location =
            |key| KeyLocation { name: support::redis_key(key), server: servers.owner(key) };
        let locations = keys.map(location).collect();
        let raw = servers.all().into_iter().map(support::raw_connection).collect();
        Self { fuzzer, runtime, store, raw, locations }
    }

    /// Draws a batch, sends it and compares the results.
    pub(super) fn batch(&mut self) -> Result<(), Difference> {
        let chosen = self.fuzzer.choose();
        let now = self.clocks().min().unwrap();
        for &key in &chosen {
            if self.fuzzer.should_overwrite(key) {
                self.overwrite(key, now);
            }
        }
        let batch = self.fuzzer.draw(&chosen, now);
        let commands = batch.iter().map(|(_, command)| command.clone()).collect();
        let answers = self.runtime.block_on(self.store.apply_batch(commands));
        let end = self.clocks().max().unwrap();
        self.fuzzer.compare_answers(&batch, answers, now, end)?;
        self.compare_stored(&batch)
    }

    /// Replaces the value of a key: with nothing, another entry, garbage or another type.
    fn overwrite(&mut self, key: usize, now: u64) {
        let KeyLocation { name, server } = &self.locations[key];
        let raw = &mut self.raw[*server];
        let Fuzzer { rng, keys, .. } = &mut self.fuzzer;
        let model = &mut keys[key].model;
        let _: () = redis::cmd("DEL").arg(name).query(raw).unwrap();
        *model = KeyModel::ABSENT;
        let bytes = match rng.u8(..10) {
            0..3 => return,
            3 => {
                let mut other = if rng.bool() { redis::cmd("LPUSH") } else { redis::cmd("SADD") };
                let _: () = other.arg(name).arg("other").query(raw).unwrap();
                *model = KeyModel { stored: Stored::OtherType, expiry: Expiry::At(-1) };
                return;
            }
            4..7 => draw::garbage(rng, now),
            _ => draw::entry(rng, now),
        };
        let _: () = redis::cmd("SET").arg(name).arg(&bytes).query(raw).unwrap();
        *model = KeyModel { stored: Stored::Text(bytes), expiry: Expiry::At(-1) };
    }

    /// Compares what is stored and when it expires.
    fn compare_stored(&mut self, batch: &[(usize, Command)]) -> Result<(), Difference> {
        let keys: BTreeSet<usize> = batch.iter().map(|(key, _)| *key).collect();
        let mut pipelines: Vec<_> = self.raw.iter().map(|_| redis::pipe()).collect();
        for &key in &keys {
            let KeyLocation { name, server } = &self.locations[key];
            // MGET replies nil to a value of another type.
            pipelines[*server].cmd("MGET").arg(name).cmd("PEXPIRETIME").arg(name);
        }
        let seen = pipelines.iter().zip(&mut self.raw).map(|(pipeline, raw)| {
            let seen: Vec<redis::Value> =
                if pipeline.is_empty() { Vec::new() } else { pipeline.query(raw).unwrap() };
            seen.into_iter()
        });
        let mut seen: Vec<_> = seen.collect();
        for key in keys {
            let seen = &mut seen[self.locations[key].server];
            let mut next = || seen.next().unwrap();
            let [text] = redis::from_redis_value::<[Option<Vec<u8>>; 1]>(next()).unwrap();
            let expiry: i64 = redis::from_redis_value(next()).unwrap();
            let stored = match text {
                Some(text) => Stored::Text(text),
                None if expiry == -2 => Stored::Absent,
                None => Stored::OtherType,
            };
            self.fuzzer.compare_stored(batch, key, stored, expiry)?;
        }
        Ok(())
    }

    /// The servers' clocks, in µs. A server answers with the time at which it began to read its
    /// connections, which another server may have passed.
    fn clocks(&mut self) -> impl Iterator<Item = u64> {
        self.raw.iter_mut().map(|raw| {
            let (seconds, rest): (u64, u64) = redis::cmd("TIME").query(raw).unwrap();
            seconds * 1_000_000 + rest
        })
    }
}
