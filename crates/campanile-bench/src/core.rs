//! The cost of the layer itself: a record through the layer and a [`MemoryStore`]. It has no recorder of
//! metrics, except in the rows about them.

use std::time::Duration;

use campanile::{BoxError, IdempotencyLayer, LockKeeper, MemoryStore, lock::Clock};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use crate::handlers::{Noop, key, process, with_layer};
use crate::report::{Goal, Report, Row};

const ROUNDS: usize = 5;
const RECORDS: u64 = 100_000;

/// More rounds, since the difference is small.
const METRICS_ROUNDS: usize = 21;

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let (mut bare, mut alone, mut many, mut same_thread) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        bare.push(nanos_per_record(runtime.block_on(process(Noop, 0..RECORDS, 256))?));
        let layer = IdempotencyLayer::new(MemoryStore::new(), "bench", key)?;
        let tenth = runtime.block_on(process(with_layer(&layer), 0..RECORDS / 10, 1))?;
        alone.push(nanos_per_record(tenth * 10));
        let handler = with_layer(&layer);
        many.push(nanos_per_record(runtime.block_on(process(
            handler,
            RECORDS..2 * RECORDS,
            256,
        ))?));
        same_thread.push(nanos_per_record(run_on_one_thread(None)?.time));
    }
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut with_metrics = vec![];
    for _ in 0..METRICS_ROUNDS {
        let without = nanos_per_record(run_on_one_thread(None)?.cpu);
        with_metrics.push(nanos_per_record(run_on_one_thread(Some(&recorder))?.cpu) - without);
    }
    let over_bare = |all: Vec<f64>| all.iter().zip(&bare).map(|(all, bare)| all - bare).collect();
    let mut row = |name, unit, values, goal| {
        report.add(Row { area: "core", name, unit, values, reference: None, goal });
    };
    let two_micros = Some(Goal::AtMost(2_000.0));
    row("the bare handler", "ns/record", bare.clone(), None);
    row("layer + MemoryStore over that, one at a time", "ns/record", over_bare(alone), None);
    row("layer + MemoryStore over that, 256 at once", "ns/record", over_bare(many), two_micros);
    row(
        "the same, with its keeper on the same thread",
        "ns/record",
        over_bare(same_thread),
        two_micros,
    );
    row(
        "metrics of the same, over none",
        "ns of CPU/record",
        with_metrics,
        Some(Goal::AtMost(60.0)),
    );
    let without_metrics = run_on_one_thread(None)?.allocations;
    let allocations = without_metrics - bare_allocations()?;
    let each = vec![allocations as f64 / RECORDS as f64];
    row("its allocations over the bare handler's", "a record", each, Some(Goal::AtMost(6.0)));
    let metrics = run_on_one_thread(Some(&recorder))?.allocations as f64 - without_metrics as f64;
    let each = vec![metrics / RECORDS as f64];
    row("their allocations", "a record", each, Some(Goal::AtMost(0.02)));
    Ok(())
}

struct SingleThreadRun {
    allocations: u64,
    time: Duration,
    /// The CPU time, which other processes change less.
    cpu: Duration,
}

/// Runs everything on one thread, so that all allocations are counted.
fn run_on_one_thread(recorder: Option<&PrometheusRecorder>) -> Result<SingleThreadRun, BoxError> {
    let runtime = current_thread()?;
    let layer = || {
        let (keeper, task) = LockKeeper::pair(MemoryStore::new(), Clock::boot());
        runtime.spawn(task);
        IdempotencyLayer::new(&keeper, "bench", key)
    };
    let layer = match recorder {
        Some(recorder) => metrics::with_local_recorder(recorder, layer)?,
        None => layer()?,
    };
    let mut time = Ok(Duration::ZERO);
    let start = thread_cpu_time();
    let counted = allocation_counter::measure(|| {
        time = runtime.block_on(process(with_layer(&layer), 0..RECORDS, 256));
    });
    let cpu = thread_cpu_time() - start;
    Ok(SingleThreadRun { allocations: counted.count_total, time: time?, cpu })
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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

fn nanos_per_record(all: Duration) -> f64 {
    all.as_nanos() as f64 / RECORDS as f64
}
