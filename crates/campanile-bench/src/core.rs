//! What the layer itself costs: a record through the layer and a [`MemoryStore`].

use std::time::Duration;

use campanile::{BoxError, Clock, IdempotencyLayer, LockKeeper, MemoryStore};
use tokio::runtime::{Builder, Runtime};

use crate::guarded::{Noop, guarded, key, process};
use crate::report::{Report, Row};

const ROUNDS: usize = 5;
const RECORDS: u64 = 100_000;

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let (mut bare, mut alone, mut many, mut same_thread) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        bare.push(nanos(runtime.block_on(process(Noop, 0..RECORDS, 256))?));
        let layer = IdempotencyLayer::new(MemoryStore::new(), "bench", key)?;
        let tenth = runtime.block_on(process(guarded(&layer), 0..RECORDS / 10, 1))?;
        alone.push(nanos(tenth * 10));
        let handler = guarded(&layer);
        many.push(nanos(runtime.block_on(process(handler, RECORDS..2 * RECORDS, 256))?));
        same_thread.push(nanos(one_thread()?.time));
    }
    let row = |name, values| Row {
        area: "core",
        name,
        unit: "ns/record",
        values,
        against: Some(("the bare handler, ns/record", bare.clone())),
        goal: None,
    };
    report.add(row("layer + MemoryStore, one at a time", alone));
    report.add(row("layer + MemoryStore, 256 at once", many));
    report.add(row("the same, with its keeper on the same thread", same_thread));
    let allocations = |name, count: u64| Row {
        area: "core",
        name,
        unit: "allocs",
        values: vec![count as f64 / RECORDS as f64],
        against: None,
        goal: None,
    };
    report.add(allocations("allocations/record, bare", bare_allocations()?));
    report.add(allocations("allocations/record, layer + MemoryStore", one_thread()?.allocations));
    Ok(())
}

struct Measured {
    allocations: u64,
    time: Duration,
}

/// Everything on one thread, so that all of its allocations are counted.
fn one_thread() -> Result<Measured, BoxError> {
    let runtime = current_thread()?;
    let (keeper, task) = LockKeeper::unspawned(MemoryStore::new(), Clock::boot());
    runtime.spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "bench", key)?;
    let mut time = Ok(Duration::ZERO);
    let counted = allocation_counter::measure(|| {
        time = runtime.block_on(process(guarded(&layer), 0..RECORDS, 256));
    });
    Ok(Measured { allocations: counted.count_total, time: time? })
}

fn bare_allocations() -> Result<u64, BoxError> {
    let runtime = current_thread()?;
    let mut result = Ok(Duration::ZERO);
    let counted = allocation_counter::measure(|| {
        result = runtime.block_on(process(Noop, 0..RECORDS, 256));
    });
    result?;
    Ok(counted.count_total)
}

fn current_thread() -> Result<Runtime, BoxError> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn nanos(all: Duration) -> f64 {
    all.as_nanos() as f64 / RECORDS as f64
}
