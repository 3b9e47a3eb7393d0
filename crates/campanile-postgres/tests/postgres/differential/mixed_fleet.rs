//! A process of before the details and a present one work on the same entries.

use std::time::SystemTime;

use campanile_core::{Command, Entry, Grant, Operation, Reply, Retention, StoreKey, step};
use campanile_idempotency::Store;
use campanile_postgres::migrate;
use campanile_sql::MIGRATIONS;
use fastrand::Rng;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::draw::{self, Sources};
use super::{fuzzer, rows};
use crate::support::{Database, env_number, key};

const OPERATIONS_BEFORE: usize = 200;
const OPERATIONS_AFTER: usize = 1_500;

/// Few, so that the grants of one process are settled by the other.
const KEYS: usize = 4;

/// In µs.
const RETENTION: i64 = 24 * 60 * 60 * 1_000_000;

/// What a process of version 3 sends to acquire and to complete. The other functions have not
/// changed.
struct OldProcess {
    client: Client,
    acquire: Statement,
    complete: Statement,
    adopt: Statement,
}

impl OldProcess {
    async fn new(database: &Database) -> Self {
        let client = database.client().await;
        let call = async |function: &str, parameters: &str| {
            let text = format!("SELECT * FROM campanile.{function}({parameters})");
            client.prepare(&text).await.unwrap()
        };
        let acquire = call("acquire", "$1, $2, $3, $4, $5, $6, $7, $8").await;
        let complete = call("complete", "$1, $2, $3, $4, $5, $6").await;
        let adopt = call("adopt", "$1, $2, $3, $4, $5, $6, $7, $8").await;
        Self { client, acquire, complete, adopt }
    }

    /// Applies an operation, and returns when it was decided; `None` for an operation whose function
    /// has not changed.
    async fn apply(&self, key: &StoreKey, operation: &Operation) -> Option<SystemTime> {
        let (namespace, keys) = (key.namespace().as_str(), vec![&key.digest()[..]]);
        let call = async |function: &Statement, rest: &[&(dyn ToSql + Sync)]| {
            let parameters = [&[&namespace as _, &keys as _], rest].concat();
            self.client.query(function, &parameters).await.unwrap()
        };
        let rows = match operation {
            Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor, .. } => {
                let owners = vec![owner.get().cast_signed()];
                let fingerprints = vec![fingerprint.map(|it| it.to_bits().cast_signed())];
                let floors = vec![floor.get().cast_signed()];
                let ttl = (*ttl).min(campanile_core::limits::MAX_LOCK_TTL);
                let ttl = i64::try_from(ttl.as_micros()).unwrap();
                let most = i32::from(*max_attempts);
                call(&self.acquire, &[&owners, &fingerprints, &floors, &ttl, &most, &RETENTION])
                    .await
            }
            Operation::Complete { grant, attempt, fingerprint, reply, .. } => {
                let tokens = vec![grant.token.get().cast_signed()];
                let owners = vec![grant.owner.get().cast_signed()];
                let replies = vec![reply.as_deref()];
                let rows = call(&self.complete, &[&tokens, &owners, &replies, &RETENTION]).await;
                let is_absent = |row: &Row| row.get::<_, Option<i8>>("state").is_none();
                if rows.get(1).is_some_and(is_absent) {
                    let attempts = vec![i32::from(*attempt)];
                    let fingerprints = vec![fingerprint.map(|it| it.to_bits().cast_signed())];
                    let adopted: &[&(dyn ToSql + Sync)] =
                        &[&tokens, &owners, &attempts, &fingerprints, &replies, &RETENTION];
                    call(&self.adopt, adopted).await
                } else {
                    rows
                }
            }
            _ => return None,
        };
        Some(rows.last().unwrap().get("now"))
    }
}

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
        draw::operation(rng, &Sources { stored, stale: self.stale, now, high_floors: false })
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

/// The operation as a process sends it that knows no details.
fn without_details(mut operation: Operation) -> Operation {
    if let Operation::Acquire { details, .. } | Operation::Complete { details, .. } = &mut operation
    {
        *details = None;
    }
    operation
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
    let (old, raw) = (OldProcess::new(&database).await, database.client().await);
    let mut models: Vec<Model> = (0..KEYS).map(Model::new).collect();

    for _ in 0..OPERATIONS_BEFORE {
        let model = rng.choice(&mut models).unwrap();
        let operation = without_details(model.draw(&mut rng, clock(&raw).await));
        if let Some(now) = old.apply(&model.key, &operation).await {
            model.apply(&operation, now);
        }
    }
    migrate(database.config()).await.unwrap();
    for model in &models {
        model.assert_stored(&raw, "after the migration").await;
    }

    let new = database.store().await;
    let (mut with_error, mut with_reply, mut seen_by_old) = (0, 0, 0);
    for number in 0..OPERATIONS_AFTER {
        let model = rng.choice(&mut models).unwrap();
        let drawn = model.draw(&mut rng, clock(&raw).await);
        let has_details = model.entry.as_ref().is_some_and(|entry| entry.details().is_some());
        let old_now = match rng.bool() {
            true => old.apply(&model.key, &drawn).await,
            false => None,
        };
        let context =
            format!("operation {number}, by the old process: {}, {drawn:?}", old_now.is_some());
        if let Some(now) = old_now {
            seen_by_old += usize::from(has_details);
            model.apply(&without_details(drawn), now);
        } else {
            let (key, retention) = (model.key.clone(), Retention::default());
            let command = Command { key, operation: drawn.clone(), retention };
            let answer = new.apply(command).await.unwrap();
            assert_eq!(answer.reply, model.apply(&drawn, answer.now), "{context}");
        }
        model.assert_stored(&raw, &context).await;
        if let Some(entry) = model.entry.as_ref().filter(|entry| entry.details().is_some()) {
            with_error += usize::from(entry.error().is_some());
            with_reply += usize::from(entry.reply().is_some());
        }
    }
    assert!(with_error > 0 && with_reply > 0 && seen_by_old > 0);
}
