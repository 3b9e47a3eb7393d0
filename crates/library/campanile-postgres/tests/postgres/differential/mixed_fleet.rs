//! A process of release 0.1 and a present one work on the same entries.

use std::array;
use std::time::SystemTime;

use campanile_core::{Answer, Command, Entry, Operation, Retention, StoreKey};
use campanile_idempotency::Store;
use campanile_postgres::{PgStore, migrate, migrate_with};
use fastrand::Rng;
use tokio_postgres::Client;

use super::shared_keys::{Handovers, KEYS, OPERATIONS, Release, SharedKey};
use super::v0_1::{SCHEMA, SCHEMA_SQL};
use super::{fuzzer, rows};
use crate::support::{Database, env_number, key, with_next_version};

const OPERATIONS_BEFORE: usize = 200;

struct MixedFleet {
    raw: Client,
    rng: Rng,
    keys: [SharedKey; KEYS],
    handovers: Handovers,
    operations: usize,
}

impl MixedFleet {
    /// Sends a random operation, and compares the reply and the row with those of `step`.
    async fn send(&mut self, release: Release, store: &PgStore) {
        let n = self.rng.usize(..KEYS);
        let now = fuzzer::micros(self.clock().await);
        let operation = self.keys[n].draw(&mut self.rng, now);
        self.operations += 1;
        let context = format!("operation {}, by {release:?}: {operation:?}", self.operations);
        let answer = apply(store, n, operation.clone()).await;
        let expected = self.keys[n].apply(release, &operation, answer.now, &mut self.handovers);
        assert_eq!(answer.reply, expected, "{context}");
        self.assert_stored(n, &context).await;
    }

    /// Asserts that the table has exactly the entry of the model.
    async fn assert_stored(&self, n: usize, context: &str) {
        let stored = rows::read(&self.raw, &[&store_key(n).digest()[..]]).await;
        let stored = stored.first().map(|(_, _, bytes)| Entry::from_bytes(bytes).unwrap());
        assert_eq!(stored, self.keys[n].entry, "{context}");
    }

    async fn clock(&self) -> SystemTime {
        self.raw.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0)
    }
}

/// The process of 0.1 stays connected during the migration, with statements that it prepared before,
/// and so does the present one during the next migration, which adds a column to the table.
#[tokio::test]
async fn process_of_0_1_works_during_and_after_the_migration() {
    let seed = env_number("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    let database = Database::empty();
    database.psql(SCHEMA_SQL);
    let v0_1 = PgStore::connect_with_schema(database.config(), SCHEMA).await.unwrap();
    let mut fleet = MixedFleet {
        raw: database.client().await,
        rng: Rng::with_seed(seed),
        keys: array::from_fn(|_| SharedKey::default()),
        handovers: Handovers::default(),
        operations: 0,
    };
    for _ in 0..OPERATIONS_BEFORE {
        fleet.send(Release::V0_1, &v0_1).await;
    }
    migrate(database.config()).await.unwrap();
    for n in 0..KEYS {
        fleet.assert_stored(n, "after the migration").await;
    }

    let present = database.store().await;
    while fleet.operations < OPERATIONS || !fleet.handovers.are_complete() {
        assert!(fleet.operations < OPERATIONS * 20, "{:?}", fleet.handovers);
        if fleet.operations == OPERATIONS / 2 {
            let migration = "ALTER TABLE campanile.entry ADD COLUMN added_later integer";
            let next = with_next_version(migration);
            migrate_with(database.config(), &next).await.unwrap();
        }
        match fleet.rng.bool() {
            true => fleet.send(Release::V0_1, &v0_1).await,
            false => fleet.send(Release::Present, &present).await,
        }
    }
}

fn store_key(n: usize) -> StoreKey {
    key(format!("key {n}"))
}

async fn apply(store: &PgStore, n: usize, operation: Operation) -> Answer {
    let (key, retention) = (store_key(n), Retention::default());
    store.apply(Command { key, operation, retention }).await.unwrap()
}
