//! A process of before the details and a present one work on the same entries.

use std::time::SystemTime;

use campanile_core::{
    Answer, Command, Entry, FencingToken, Grant, Operation, Reply, Retention, StoreKey, step,
};
use campanile_idempotency::Store;
use campanile_postgres::{PgStore, migrate};
use campanile_sql::MIGRATIONS;
use fastrand::Rng;
use tokio_postgres::Client;

use super::before::SCHEMA_BEFORE;
use super::draw::{self, Sources};
use super::{fuzzer, rows};
use crate::support::{Database, env_number, key};

const OPERATIONS_BEFORE: usize = 200;
const OPERATIONS_AFTER: usize = 1_500;

/// Few, so that the grants of one process are settled by the other.
const KEYS: usize = 12;

/// A key, and what `step` makes of the same operations.
struct Model {
    key: StoreKey,
    entry: Option<Entry>,
    stale: Option<Grant>,
}

impl Model {
    fn new(number: usize) -> Self {
        Self { key: key(format!("key {number}")), entry: None, stale: None }
    }

    fn draw(&self, rng: &mut Rng, now: SystemTime) -> Operation {
        let stored = self.entry.as_ref().map(|entry| (entry.token(), entry.owner()));
        let now = fuzzer::micros(now);
        let floor = FencingToken::ZERO;
        draw::operation(rng, &Sources { stored, stale: self.stale, now, floor })
    }

    fn apply(&mut self, operation: &Operation, now: SystemTime) -> Reply {
        let grant = |entry: &Entry| Some(Grant { token: entry.token(), owner: entry.owner()? });
        self.stale = self.entry.as_ref().and_then(grant);
        let (entry, reply) = step(self.entry.take(), operation, now);
        self.entry = entry;
        reply
    }

    /// Asserts that the table has exactly the entry of the model.
    async fn assert_stored(&self, client: &Client, context: &str) {
        let stored = rows::read(client, &[&self.key.digest()[..]]).await;
        let stored = stored.first().map(|(_, _, bytes)| Entry::from_bytes(bytes).unwrap());
        assert_eq!(stored, self.entry, "{context}");
    }
}

async fn clock(client: &Client) -> SystemTime {
    client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0)
}

/// The operation as a process decides it that knows no details.
fn without_details(mut operation: Operation) -> Operation {
    if let Operation::Acquire { details, .. } | Operation::Complete { details, .. } = &mut operation
    {
        *details = None;
    }
    operation
}

fn reply_without_details(mut reply: Reply) -> Reply {
    match &mut reply {
        Reply::Duplicate { details, .. } => *details = None,
        Reply::Acquired { steps, .. } => *steps = None,
        _ => {}
    }
    reply
}

async fn apply(store: &PgStore, key: &StoreKey, operation: Operation) -> Answer {
    let (key, retention) = (key.clone(), Retention::default());
    store.apply(Command { key, operation, retention }).await.unwrap()
}

/// The old process stays connected during the migration, with statements that it prepared before.
#[tokio::test]
async fn process_of_before_works_during_and_after_the_migration() {
    let seed = env_number("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let database = Database::empty();
    for (_, text) in MIGRATIONS.iter().take_while(|(version, _)| *version < 4) {
        database.psql(text);
    }
    let old = PgStore::connect_with_schema(database.config(), SCHEMA_BEFORE).await.unwrap();
    let raw = database.client().await;
    let mut models: Vec<Model> = (0..KEYS).map(Model::new).collect();

    for _ in 0..OPERATIONS_BEFORE {
        let model = rng.choice(&mut models).unwrap();
        let operation = without_details(model.draw(&mut rng, clock(&raw).await));
        if matches!(operation, Operation::RecordStep { .. }) {
            continue;
        }
        let answer = apply(&old, &model.key, operation.clone()).await;
        assert_eq!(answer.reply, model.apply(&operation, answer.now));
    }
    migrate(database.config()).await.unwrap();
    for model in &models {
        model.assert_stored(&raw, "after the migration").await;
    }

    let new = database.store().await;
    let (mut with_error, mut with_reply, mut seen_by_old) = (0, 0, 0);
    let mut number = 0;
    // And until each case has occurred, which depends on the seed and the clock.
    while number < OPERATIONS_AFTER || with_error == 0 || with_reply == 0 || seen_by_old == 0 {
        let seen = (with_error, with_reply, seen_by_old);
        assert!(number < OPERATIONS_AFTER * 20, "{seen:?}");
        number += 1;
        let model = rng.choice(&mut models).unwrap();
        let drawn = model.draw(&mut rng, clock(&raw).await);
        // A process of before has no function for steps.
        let is_step = matches!(drawn, Operation::RecordStep { .. });
        let has_details = model.entry.as_ref().is_some_and(|entry| entry.details().is_some());
        let is_old = !is_step && rng.bool();
        let context = format!("operation {number}, by the old process: {is_old}, {drawn:?}");
        if is_old {
            seen_by_old += usize::from(has_details);
            let answer = apply(&old, &model.key, drawn.clone()).await;
            let expected = model.apply(&without_details(drawn), answer.now);
            assert_eq!(answer.reply, reply_without_details(expected), "{context}");
        } else {
            let answer = apply(&new, &model.key, drawn.clone()).await;
            assert_eq!(answer.reply, model.apply(&drawn, answer.now), "{context}");
        }
        model.assert_stored(&raw, &context).await;
        if let Some(entry) = model.entry.as_ref().filter(|entry| entry.details().is_some()) {
            with_error += usize::from(entry.error().is_some());
            with_reply += usize::from(entry.reply().is_some());
        }
    }
}
