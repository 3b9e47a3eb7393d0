//! The rows of the driver's benchmark, each with its goal.

use std::time::Duration;

use campanile::BoxError;

use super::latency::{self, Load};
use super::measurement::{Latency, Measurement};
use super::runner::Runner;
use super::task::{Check, Contestant, OrderKind, RuntimeKind, Telemetry};
use super::topic::Topic;
use super::{sleeping, slow_partition};
use crate::report::{Comparison, Goal, Goals, Report, Row};

type Run = fn(&mut Report, &mut Runner) -> Result<(), BoxError>;

/// The rows by name.
pub(super) const ROWS: [(&str, Run); 17] = [
    ("by-partition-6", by_partition_6),
    ("by-partition-60-16k", by_partition_60_16k),
    ("by-partition-60-1m", by_partition_60_1m),
    ("replay", replay),
    ("by-key-256", by_key_256),
    ("unordered-256", unordered_256),
    ("lone-backlog", lone_backlog),
    ("latency-1", latency_1),
    ("no-op-6", no_op_6),
    ("no-op-100", no_op_100),
    ("no-op-1000", no_op_1000),
    ("tracing", tracing),
    ("metrics", metrics),
    ("observing", observing),
    ("memory-500", memory_500),
    ("sleeping", sleeping::run),
    ("slow-partition", slow_partition::run),
];

/// The topic of most rows.
const PAYMENTS: Topic = Topic {
    name: "payments",
    partitions: 6,
    filled: 6,
    records: 400_000,
    value: 100,
    batch: None,
    keyed: true,
    timed: false,
    handler_time: Duration::ZERO,
};

const SIXTY_PARTITIONS: Topic = Topic { partitions: 60, filled: 60, records: 500_000, ..PAYMENTS };

const NO_OP: Topic = Topic { records: 2_000_000, keyed: false, ..PAYMENTS };

fn by_partition_6(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let goals = Goals { rate: Some(Goal::AtLeast(1.2)), ..Goals::default() };
    by_partition(report, runner, "by-partition-6", &PAYMENTS, goals)
}

/// The default batch size of the Java client.
fn by_partition_60_16k(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let topic = Topic { name: "60-partitions-16k", batch: Some(16 * 1024), ..SIXTY_PARTITIONS };
    by_partition(report, runner, "by-partition-60-16k", &topic, SIXTY_GOALS)
}

/// The default batch size of librdkafka's producer.
fn by_partition_60_1m(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let topic = Topic { name: "60-partitions-1m", batch: Some(1_000_000), ..SIXTY_PARTITIONS };
    by_partition(report, runner, "by-partition-60-1m", &topic, SIXTY_GOALS)
}

const SIXTY_GOALS: Goals =
    Goals { rate: Some(Goal::AtLeast(1.0)), cpu: None, rss: Some(Goal::AtMost(64.0)) };

fn by_partition(
    report: &mut Report,
    runner: &mut Runner,
    row: &'static str,
    topic: &Topic,
    goals: Goals,
) -> Result<(), BoxError> {
    let [two, current, baseline] = runner.rounds(
        topic,
        [
            with_layer(OrderKind::ByPartition, RuntimeKind::TwoWorkers),
            with_layer(OrderKind::ByPartition, RuntimeKind::CurrentThread),
            Contestant::Partitions(Check::ClaimAndCompletion),
        ],
    )?;
    let reference = ("a task per partition by hand", baseline);
    compare_runtimes(report, row, [two, current], reference, goals);
    Ok(())
}

/// Replays a topic with all keys COMPLETED.
fn replay(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let orders = [OrderKind::ByPartition, OrderKind::ByKey];
    let [two, current] =
        RuntimeKind::ALL.map(|runtime| orders.map(|order| with_layer(order, runtime)));
    runner.fill(&PAYMENTS)?;
    runner.clear()?;
    let all = runner.run(&PAYMENTS, two[1], Duration::from_secs(600))?;
    if all.records != PAYMENTS.records {
        return Err("the topic was not processed to its end".into());
    }
    let [partition_two, key_two, partition_current, key_current] =
        runner.rounds_after(&PAYMENTS, [two[0], two[1], current[0], current[1]], |_| Ok(()))?;
    let goals = Goals { rate: Some(Goal::AtLeast(0.5)), ..Goals::default() };
    for (runtime, candidate, by_key) in [
        (RuntimeKind::TwoWorkers, partition_two, key_two),
        (RuntimeKind::CurrentThread, partition_current, key_current),
    ] {
        let reference = ("by key", by_key);
        report.compare(Comparison {
            row: "replay",
            contestant: runtime.name(),
            candidate,
            reference,
            goals,
        });
    }
    runner.clear()
}

fn by_key_256(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let [two, current, baseline] = runner.rounds(
        &PAYMENTS,
        [
            with_layer(OrderKind::ByKey, RuntimeKind::TwoWorkers),
            with_layer(OrderKind::ByKey, RuntimeKind::CurrentThread),
            Contestant::Keyed,
        ],
    )?;
    let goals =
        Goals { rate: Some(Goal::AtLeast(1.0)), cpu: Some(Goal::AtMost(1.2)), ..Goals::default() };
    let reference = ("256 workers with keys by hand", baseline);
    compare_runtimes(report, "by-key-256", [two, current], reference, goals);
    Ok(())
}

fn unordered_256(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let [two, current, baseline] = runner.rounds(
        &PAYMENTS,
        [
            with_layer(OrderKind::None, RuntimeKind::TwoWorkers),
            with_layer(OrderKind::None, RuntimeKind::CurrentThread),
            Contestant::Concurrent,
        ],
    )?;
    let goals = Goals { rate: Some(Goal::AtLeast(0.85)), ..Goals::default() };
    let reference = ("256 at once by hand, no order", baseline);
    compare_runtimes(report, "unordered-256", [two, current], reference, goals);
    Ok(())
}

/// A backlog in one of six partitions: a fetch for the others, which have nothing, must not hold it up.
fn lone_backlog(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let [two, current, baseline] = runner.rounds(
        &Topic { name: "lone-backlog", filled: 1, ..PAYMENTS },
        [
            with_layer(OrderKind::ByKey, RuntimeKind::TwoWorkers),
            with_layer(OrderKind::ByKey, RuntimeKind::CurrentThread),
            Contestant::Keyed,
        ],
    )?;
    let goals = Goals { rate: Some(Goal::AtLeast(1.0)), ..Goals::default() };
    let reference = ("256 workers with keys by hand", baseline);
    compare_runtimes(report, "lone-backlog", [two, current], reference, goals);
    Ok(())
}

/// Compares the latency from producing a record to its completion with two round trips to Redis.
fn latency_1(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let load = Load::start(&runner.kafka, Duration::from_millis(3))?;
    runner.mark_filled(&latency::TOPIC);
    let [two, current, bare] = runner.rounds(
        &latency::TOPIC,
        [
            Contestant::Latency { runtime: RuntimeKind::TwoWorkers },
            Contestant::Latency { runtime: RuntimeKind::CurrentThread },
            Contestant::RoundTrips,
        ],
    )?;
    load.stop()?;
    let p50: fn(Latency) -> f64 = |latency| latency.p50;
    let p99: fn(Latency) -> f64 = |latency| latency.p99;
    for (name, of, quantile, goal) in [
        ("latency-1, p50, 2 workers", &two, p50, 1.15),
        ("latency-1, p50, current-thread", &current, p50, 1.15),
        ("latency-1, p99, 2 workers", &two, p99, 1.5),
        ("latency-1, p99, current-thread", &current, p99, 1.5),
    ] {
        let all = |of: &[Measurement]| of.iter().filter_map(|m| m.latency).map(quantile).collect();
        report.add(Row {
            area: "driver",
            name,
            unit: "us",
            values: all(of),
            reference: Some(("two bare round trips, us", all(&bare))),
            goal: Some(Goal::AtMost(goal)),
        });
    }
    Ok(())
}

fn no_op_6(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let rows = ["no-op-6, by partition", "no-op-6, by key"];
    no_op(report, runner, rows, &Topic { name: "no-op-6", ..NO_OP })
}

fn no_op_100(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let rows = ["no-op-100, by partition", "no-op-100, by key"];
    no_op(report, runner, rows, &Topic { name: "no-op-100", partitions: 100, filled: 100, ..NO_OP })
}

fn no_op_1000(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let rows = ["no-op-1000, by partition", "no-op-1000, by key"];
    no_op(
        report,
        runner,
        rows,
        &Topic { name: "no-op-1000", partitions: 1_000, filled: 1_000, ..NO_OP },
    )
}

fn no_op(
    report: &mut Report,
    runner: &mut Runner,
    rows: [&'static str; 2],
    topic: &Topic,
) -> Result<(), BoxError> {
    let contestant = |order, runtime| Contestant::NoOp { order, runtime };
    let [partition_two, partition_current, key_two, key_current, bare] = runner.rounds(
        topic,
        [
            contestant(OrderKind::ByPartition, RuntimeKind::TwoWorkers),
            contestant(OrderKind::ByPartition, RuntimeKind::CurrentThread),
            contestant(OrderKind::ByKey, RuntimeKind::TwoWorkers),
            contestant(OrderKind::ByKey, RuntimeKind::CurrentThread),
            Contestant::Bare,
        ],
    )?;
    for (row, candidate, goal) in
        [(rows[0], [partition_two, partition_current], 0.6), (rows[1], [key_two, key_current], 0.8)]
    {
        let goals = Goals { rate: Some(Goal::AtLeast(goal)), ..Goals::default() };
        compare_runtimes(report, row, candidate, ("a bare rdkafka loop", bare.clone()), goals);
    }
    Ok(())
}

/// The cost of the README's subscriber: events at INFO, and the spans of records.
fn tracing(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let [with, without] = observed(runner, Telemetry::Subscriber)?;
    report.compare(Comparison {
        row: "tracing",
        contestant: "by key with fmt::init()",
        candidate: with,
        reference: ("by key without a subscriber", without),
        goals: Goals { rate: Some(Goal::AtLeast(0.97)), ..Goals::default() },
    });
    Ok(())
}

/// The cost of a recorder of metrics.
fn metrics(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let [with, without] = observed(runner, Telemetry::Recorder)?;
    report.compare(Comparison {
        row: "metrics",
        contestant: "by key with a recorder",
        candidate: with,
        reference: ("by key without a recorder", without),
        goals: Goals {
            rate: Some(Goal::AtLeast(0.98)),
            cpu: Some(Goal::AtMost(1.02)),
            ..Goals::default()
        },
    });
    Ok(())
}

fn observed(runner: &mut Runner, by: Telemetry) -> Result<[Vec<Measurement>; 2], BoxError> {
    let contestant = |telemetry| Contestant::Campanile {
        order: OrderKind::ByKey,
        runtime: RuntimeKind::TwoWorkers,
        telemetry,
    };
    runner.rounds(&PAYMENTS, [by, Telemetry::None].map(contestant))
}

/// The cost of an observer in a loop that is written by hand: with handlers that do nothing, so that
/// the machine is the limit, and with handlers that wait as long as for a database or a service.
fn observing(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let goal = Goals { rate: Some(Goal::AtLeast(0.95)), ..Goals::default() };
    for (row, handler_time, goals) in [
        ("observing, no work", Duration::ZERO, Goals::default()),
        ("observing, handlers of 1 ms", Duration::from_millis(1), goal),
        ("observing, handlers of 3 ms", Duration::from_millis(3), goal),
    ] {
        let topic = Topic { handler_time, ..PAYMENTS };
        let [with, without] = runner
            .rounds(&topic, [Check::ObservedClaim, Check::Claim].map(Contestant::Partitions))?;
        report.compare(Comparison {
            row,
            contestant: "by hand with `SET NX`, observed",
            candidate: with,
            reference: ("by hand with `SET NX`", without),
            goals,
        });
    }
    Ok(())
}

/// Memory usage while no handler finishes and all partitions have a backlog of large records.
fn memory_500(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let (partitions, records) = if runner.options.full { (500, 1_024) } else { (200, 256) };
    let value = 1024 * 1024;
    let filled = partitions;
    let topic =
        Topic { name: "memory", partitions, filled, records, value, keyed: false, ..PAYMENTS };
    runner.fill(&topic)?;
    let mut values = Vec::new();
    for _ in 0..runner.options.rounds {
        values.push(runner.run(&topic, Contestant::Stalled, Duration::from_secs(10))?.rss_mib);
    }
    report.add(Row {
        area: "driver",
        name: "memory-500, peak over idle, stalled",
        unit: "MiB",
        values,
        reference: None,
        goal: Some(Goal::AtMost(64.0)),
    });
    Ok(())
}

fn with_layer(order: OrderKind, runtime: RuntimeKind) -> Contestant {
    Contestant::Campanile { order, runtime, telemetry: Telemetry::None }
}

/// Adds a comparison for each runtime, in the order of [`RuntimeKind::ALL`].
fn compare_runtimes(
    report: &mut Report,
    row: &'static str,
    candidate: [Vec<Measurement>; 2],
    reference: (&'static str, Vec<Measurement>),
    goals: Goals,
) {
    for (runtime, candidate) in RuntimeKind::ALL.into_iter().zip(candidate) {
        let (contestant, reference) = (runtime.name(), reference.clone());
        report.compare(Comparison { row, contestant, candidate, reference, goals });
    }
}
