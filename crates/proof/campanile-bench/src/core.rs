//! The cost of the layer itself: a record through the layer and a [`MemoryStore`]. It has no recorder of
//! metrics, except in the rows about them. All times are CPU times, which other processes change less.

use std::ops::Range;
use std::time::Duration;

use campanile::{BoxError, IdempotencyLayer, LockKeeper, MemoryStore, WithLock, lock::Clock};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use crate::handlers::{Handler, Message, Noop, key, process, with_layer};
use crate::report::{Goal, Report, Row, median};

const UNIT: &str = "ns of CPU/record";

const ROUNDS: usize = 5;
const RECORDS: u64 = 100_000;

/// Of the small difference that metrics make: a round is the median of pairs of short slices, one
/// without and one with metrics. Other processes disturb both alike, or few pairs much.
const METRICS_ROUNDS: usize = 9;
const PAIRS: usize = 40;
const SLICE: u64 = 2_560;

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let (mut bare, mut alone, mut many, mut same_thread) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        bare.push(nanos_per_record(&runtime, Noop, 0..RECORDS, 256)?);
        let layer = IdempotencyLayer::new(MemoryStore::new(), "bench", key)?;
        alone.push(nanos_per_record(&runtime, with_layer(&layer), 0..RECORDS / 10, 1)?);
        let numbers = RECORDS..2 * RECORDS;
        many.push(nanos_per_record(&runtime, with_layer(&layer), numbers, 256)?);
        same_thread.push(run_on_one_thread()?.cpu.as_nanos() as f64 / RECORDS as f64);
    }
    let recorder = PrometheusBuilder::new().build_recorder();
    let rounds = (0..METRICS_ROUNDS).map(|_| compare_metrics(&recorder));
    let metrics = rounds.collect::<Result<Vec<_>, _>>()?;
    let over_bare = |all: Vec<f64>| all.iter().zip(&bare).map(|(all, bare)| all - bare).collect();
    let mut row = |name, unit, values, goal| {
        report.add(Row { area: "core", name, unit, values, reference: None, goal });
    };
    let two_micros = Some(Goal::AtMost(2_000.0));
    row("the bare handler", UNIT, bare.clone(), None);
    row("layer + MemoryStore over that, one at a time", UNIT, over_bare(alone), None);
    row("layer + MemoryStore over that, 256 at once", UNIT, over_bare(many), two_micros);
    row("the same, with its keeper on the same thread", UNIT, over_bare(same_thread), two_micros);
    row(
        "metrics of the same, over none",
        UNIT,
        metrics.iter().map(|round| round.nanos).collect(),
        Some(Goal::AtMost(60.0)),
    );
    let each = metrics.iter().map(|round| round.allocations).collect();
    row("their allocations", "a record", each, Some(Goal::AtMost(0.02)));
    let allocations = run_on_one_thread()?.allocations - bare_allocations()?;
    let each = vec![allocations as f64 / RECORDS as f64];
    row("its allocations over the bare handler's", "a record", each, Some(Goal::AtMost(6.0)));
    Ok(())
}

/// A layer that runs on one thread with its keeper, so that all allocations are counted.
struct SingleThread {
    runtime: Runtime,
    layer: IdempotencyLayer<Key>,
}

type Key = fn(&WithLock<Message>) -> String;

struct SingleThreadRun {
    allocations: u64,
    cpu: Duration,
}

impl SingleThread {
    fn new(recorder: Option<&PrometheusRecorder>) -> Result<Self, BoxError> {
        let runtime = current_thread()?;
        let layer = || {
            let (keeper, task) = LockKeeper::pair(MemoryStore::new(), Clock::boot());
            runtime.spawn(task);
            IdempotencyLayer::new(&keeper, "bench", key as Key)
        };
        let layer = match recorder {
            Some(recorder) => metrics::with_local_recorder(recorder, layer)?,
            None => layer()?,
        };
        Ok(Self { runtime, layer })
    }

    fn run(&self, numbers: Range<u64>) -> Result<SingleThreadRun, BoxError> {
        let mut result = Ok(Duration::ZERO);
        let start = cpu_time(ClockId::ThreadCPUTime);
        let counted = allocation_counter::measure(|| {
            result = self.runtime.block_on(process(with_layer(&self.layer), numbers, 256));
        });
        let cpu = cpu_time(ClockId::ThreadCPUTime) - start;
        result?;
        Ok(SingleThreadRun { allocations: counted.count_total, cpu })
    }
}

fn run_on_one_thread() -> Result<SingleThreadRun, BoxError> {
    SingleThread::new(None)?.run(0..RECORDS)
}

/// What metrics cost a record.
struct MetricsCost {
    nanos: f64,
    allocations: f64,
}

fn compare_metrics(recorder: &PrometheusRecorder) -> Result<MetricsCost, BoxError> {
    let without = SingleThread::new(None)?;
    let with = SingleThread::new(Some(recorder))?;
    let (mut nanos, mut allocations) = (vec![], 0.0);
    for pair in 0..=PAIRS as u64 {
        let numbers = pair * SLICE..(pair + 1) * SLICE;
        // In alternating order, so that neither always comes first.
        let [without, with] = if pair % 2 == 0 {
            let without = without.run(numbers.clone())?;
            [without, with.run(numbers)?]
        } else {
            let with = with.run(numbers.clone())?;
            [without.run(numbers)?, with]
        };
        // The first pair is a warm-up.
        if pair > 0 {
            nanos.push(with.cpu.as_nanos() as f64 - without.cpu.as_nanos() as f64);
            allocations += with.allocations as f64 - without.allocations as f64;
        }
    }
    Ok(MetricsCost {
        nanos: median(&nanos) / SLICE as f64,
        allocations: allocations / (PAIRS as u64 * SLICE) as f64,
    })
}

fn cpu_time(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
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

/// Measures all threads of the process.
fn nanos_per_record(
    runtime: &Runtime,
    handler: impl Handler,
    numbers: Range<u64>,
    tasks: u64,
) -> Result<f64, BoxError> {
    let records = (numbers.end - numbers.start) as f64;
    let start = cpu_time(ClockId::ProcessCPUTime);
    runtime.block_on(process(handler, numbers, tasks))?;
    let used = cpu_time(ClockId::ProcessCPUTime) - start;
    Ok(used.as_nanos() as f64 / records)
}
