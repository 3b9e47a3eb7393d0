//! Sends random batches to the store and compares the rows that it stores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use campanile_core::Command;
use campanile_idempotency::Store;
use campanile_postgres::PgStore;

use super::fuzzer::{Difference, Fuzzer, micros};
use super::model::{Expiry, KeyModel, Stored};
use super::{draw, rows};
use crate::support::Database;

pub(super) struct Runner {
    pub(super) fuzzer: Fuzzer,
    store: PgStore,
    raw: tokio_postgres::Client,
}

impl Runner {
    pub(super) async fn new(database: &Database, seed: u64) -> Self {
        let (store, raw) = (database.store().await, database.client().await);
        Self { fuzzer: Fuzzer::new(seed), store, raw }
    }

    /// Draws a batch, sends it, and compares the result.
    pub(super) async fn batch(&mut self) -> Result<(), Difference> {
        let chosen = self.fuzzer.choose();
        let now = self.clock().await;
        for &key in &chosen {
            if self.fuzzer.should_overwrite(key) {
                self.disturb(key, now).await;
            }
        }
        let batch = self.fuzzer.draw(&chosen, now);
        let commands = batch.iter().map(|(_, command)| command.clone()).collect();
        let answers = self.store.apply_batch(commands).await;
        let end = self.clock().await;
        self.fuzzer.compare_answers(&batch, answers, now, end)?;
        self.compare_stored(&batch).await
    }

    /// Replaces the entry of a key: with nothing, another entry, or an expired one.
    async fn disturb(&mut self, key: usize, now: u64) {
        const DAY: u64 = 86_400_000_000;
        let Fuzzer { rng, keys, .. } = &mut self.fuzzer;
        let key = &mut keys[key];
        rows::delete(&self.raw, key.key.digest()).await;
        key.model = KeyModel::ABSENT;
        let kind = rng.u8(..10);
        if kind < 3 {
            return;
        }
        let mut bytes = rows::storable(draw::entry(rng, now));
        let is_expired = kind == 3;
        if is_expired {
            // An expired entry's token must not be ahead of the clock, because `step` does not see
            // that entry.
            let token = u64::from_be_bytes(*bytes[8..].first_chunk().unwrap()).min(now - 1);
            bytes[8..16].copy_from_slice(&token.to_be_bytes());
        }
        let until = if is_expired { now - 1 } else { now + DAY };
        let until_time = SystemTime::UNIX_EPOCH + Duration::from_micros(until);
        rows::insert(&self.raw, key.key.digest(), &bytes, until_time).await;
        if !is_expired {
            let expiry = Expiry::At(i64::try_from(until / 1000).unwrap());
            key.model = KeyModel { stored: Stored::Text(bytes), expiry };
        }
    }

    /// Compares the stored entries and their expiry.
    async fn compare_stored(&mut self, batch: &[(usize, Command)]) -> Result<(), Difference> {
        const ABSENT: (Stored, i64) = (Stored::Absent, -2);
        let keys: BTreeSet<usize> = batch.iter().map(|(key, _)| *key).collect();
        let digest = |key: usize| &self.fuzzer.keys[key].key.digest()[..];
        let digests: Vec<&[u8]> = keys.iter().map(|&key| digest(key)).collect();
        let stored_rows = rows::read(&self.raw, &digests).await;
        let stored_rows: BTreeMap<_, _> = stored_rows
            .into_iter()
            .map(|(key, until, bytes)| (key, (Stored::Text(bytes), until)))
            .collect();
        for key in keys {
            let digest = &self.fuzzer.keys[key].key.digest()[..];
            let (stored, expiry) = stored_rows.get(digest).cloned().unwrap_or(ABSENT);
            self.fuzzer.compare_stored(batch, key, stored, expiry)?;
        }
        Ok(())
    }

    /// Reads the server's clock, in µs.
    async fn clock(&self) -> u64 {
        let row = self.raw.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
        micros(row.get(0))
    }
}
