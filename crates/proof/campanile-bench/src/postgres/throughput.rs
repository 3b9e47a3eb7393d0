//! Messages per second.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile::store::{Answer, Command, Store, StoreError};
use campanile::{BoxError, IdempotencyLayer, PgStore};

use super::{Environment, ROUNDS, limit};
use crate::handlers::{key, process, with_layer};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 100_000;
const SEQUENTIAL_MESSAGES: u64 = 2_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let store = CountingStore { store: env.store(&env.postgres.url())?, counts: Arc::default() };
    let layer = IdempotencyLayer::new(store.clone(), "bench", key)?;
    limit::prepare(env)?;

    let (mut candidate, mut same, mut full, mut single) = (vec![], vec![], vec![], vec![]);
    let mut sizes = vec![];
    let (mut alone, mut limit_alone) = (vec![], vec![]);
    // The first round warms up the connections and the server's memory, and does not count.
    for round in 0..=ROUNDS {
        let first = round * (MESSAGES + SEQUENTIAL_MESSAGES);
        let last = first + MESSAGES;
        let took = env.runtime.block_on(process(with_layer(&layer), first..last, 256))?;
        let size = store.take_batch_size();
        let limit = limit::per_second(env, size.max(1), 4)?;
        let of_full = limit::per_second(env, 64, 4)?;
        let one_by_one = limit::per_second(env, 1, 64)?;
        let numbers = last..last + SEQUENTIAL_MESSAGES;
        let took_alone = env.runtime.block_on(process(with_layer(&layer), numbers, 1))?;
        store.take_batch_size();
        let one = limit::per_second(env, 1, 1)?;
        env.postgres.psql("VACUUM")?;
        if round > 0 {
            candidate.push(MESSAGES as f64 / took.as_secs_f64());
            sizes.push(f64::from(size));
            same.push(limit);
            full.push(of_full);
            single.push(one_by_one);
            alone.push(SEQUENTIAL_MESSAGES as f64 / took_alone.as_secs_f64());
            limit_alone.push(one);
        }
    }

    let mut row = |name, values: &[f64], reference, limit: &[f64], goal| {
        report.add(Row {
            area: "postgres",
            name,
            unit: "messages/s",
            values: values.to_vec(),
            reference: Some((reference, limit.to_vec())),
            goal,
        });
    };
    let name = "layer + PgStore, 256 at once";
    row(name, &candidate, "pgbench, as many in a statement", &same, Some(Goal::AtLeast(0.8)));
    row(name, &candidate, "pgbench, 64 in a statement", &full, None);
    row(name, &candidate, "pgbench, one in a statement, 64 clients", &single, None);
    let name = "layer + PgStore, one at a time";
    row(name, &alone, "pgbench, one in a statement, 1 client", &limit_alone, None);
    report.add(Row {
        area: "postgres",
        name: "commands in a batch, 256 at once",
        unit: "commands",
        values: sizes,
        reference: None,
        goal: None,
    });
    Ok(())
}

/// A store that measures the size of its batches.
#[derive(Clone)]
struct CountingStore {
    store: PgStore,
    counts: Arc<BatchCounts>,
}

#[derive(Default)]
struct BatchCounts {
    batches: AtomicU64,
    commands: AtomicU64,
}

impl CountingStore {
    /// Mean batch size since the last call.
    fn take_batch_size(&self) -> u32 {
        let batches = self.counts.batches.swap(0, Ordering::Relaxed);
        let commands = self.counts.commands.swap(0, Ordering::Relaxed);
        u32::try_from(commands / batches.max(1)).unwrap_or(u32::MAX)
    }
}

impl Store for CountingStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.apply_batch(vec![command]).await.pop().expect("one command has one answer")
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        self.counts.commands.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.store.apply_batch(batch).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }
}
